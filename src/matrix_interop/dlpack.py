"""DLPack capsules: checked before any library sees them, relabelled, never forged.

NumPy does the memory work.  A foreign capsule is read field by field, checked, relabelled in place
as host memory of an unsigned type and given to NumPy, which keeps it alive and calls its deleter
once.  For export NumPy makes the capsule and the label of device and type is written into it.  So
every deleter that a consumer ever calls is compiled code of the producer's or of NumPy's, which stays
callable without the interpreter; a Python callback would not.

The array that NumPy makes of device memory is a *header*: shape, strides, type, address and owner.
NumPy computes views of it, and nothing here reads through it.

Source of the structures: dlpack.h 1.3 (``DLTensor``, ``DLManagedTensor``, ``DLManagedTensorVersioned``).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU, HOST_CODES, Device, device_of_dlpack
from matrix_interop.dtypes import DLPACK_OF_DTYPE, DTYPE_OF_DLPACK, carrier
from matrix_interop.errors import MatrixInteropError, UnsupportedDtypeError, UnsupportedTensorError

__all__ = ["MAX_NDIM", "Capsule", "capsule_of", "check_extent", "header_of", "owner_of", "row_strides"]

#: Highest rank NumPy describes.
MAX_NDIM: Final = 64
_INT64_MAX: Final = 2**63 - 1
_IS_COPIED: Final = 2
#: From this minor version on the header knows type codes above that of bool.
_MINOR_OF_EXTENSIONS: Final = 1


class _Device(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


#: Bytes before the tensor in the versioned form.
_VERSIONED_HEAD: Final = _Versioned.tensor.offset
#: Bytes of a tensor before its device.
_DEVICE_AT: Final = _Tensor.device.offset

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


#: Held while a foreign capsule is read, and while its labels differ from what its producer wrote: one capsule may
#: be handed to two threads. Re-entrant, because the garbage collector may run a finaliser that exchanges tensors.
_reading: Final = threading.RLock()


def _is_unused(capsule: Any) -> bool:
    return bool(_is_valid(capsule, b"dltensor_versioned") or _is_valid(capsule, b"dltensor"))


class Capsule:
    """One unused capsule of either form, its fields checked as far as that needs no dereference.

    ``device``: where the memory lives.  ``copied``: the producer says that it made a copy.
    Raises `UnsupportedTensorError` for fields that contradict each other or the DLPack text and
    `UnsupportedDtypeError` for types without a NumPy form.  A wrong host address, or a length
    beyond the allocation behind it, cannot be seen from here.
    """

    __slots__ = ("_capsule", "_dtype", "_managed", "copied", "device")

    def __init__(self, capsule: Any, producer: str) -> None:
        self._capsule = capsule
        with _reading:
            self._read(capsule, producer)

    def _read(self, capsule: Any, producer: str) -> None:
        if _is_valid(capsule, b"dltensor_versioned"):
            versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned") or 0)
            if versioned.major != 1:
                raise _broken(
                    producer, f"DLPack version {versioned.major}.{versioned.minor}; this library reads major version 1"
                )
            self._managed: _Managed | _Versioned = versioned
            self.copied = bool(versioned.flags & _IS_COPIED)
        elif _is_valid(capsule, b"dltensor"):
            self._managed = _Managed.from_address(_get_pointer(capsule, b"dltensor") or 0)
            self.copied = False
        else:
            what = type(capsule).__qualname__
            raise _broken(producer, f"its __dlpack__ gave a {what} that is not an unused DLPack capsule")
        self._check(producer)

    def _check(self, producer: str) -> None:
        tensor = self._managed.tensor
        try:
            self.device = device_of_dlpack(
                tensor.device.code, tensor.device.index if tensor.device.code not in HOST_CODES else 0
            )
        except MatrixInteropError as error:
            raise _broken(producer, str(error)) from None
        kind = tensor.dtype
        if (kind.code, kind.bits) not in DTYPE_OF_DLPACK or kind.lanes != 1:
            msg = (
                f"{producer} exports DLPack type code {kind.code}, {kind.bits} bits, {kind.lanes} lanes, which "
                "has no NumPy form: convert it in its own framework first, for example to float32"
            )
            raise UnsupportedDtypeError(msg)
        self._dtype = DTYPE_OF_DLPACK[kind.code, kind.bits]
        if not 0 <= tensor.ndim <= MAX_NDIM:
            raise _broken(producer, f"{tensor.ndim} dimensions; 0 to {MAX_NDIM} can be described")
        if tensor.ndim and not tensor.shape:
            raise _broken(producer, f"no shape for {tensor.ndim} dimensions")
        shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
        size = self._dtype.itemsize
        strides = None  # legal before version 1.2
        if tensor.ndim and tensor.strides:
            strides = tuple(step * size for step in tensor.strides[: tensor.ndim])
        try:
            check_extent(tensor.data + tensor.byte_offset if tensor.data else 0, shape, strides, size)
        except ValueError as error:
            raise _broken(producer, str(error)) from None

    def header(self) -> np.ndarray:
        """The memory as an ndarray that owns the capsule; the writeable flag follows the READ_ONLY flag.

        Legacy capsules cannot say whether they are writable and come in read-only, as in NumPy.  For
        device memory the array is a header: compute views of it, never read through it.
        """
        tensor = self._managed.tensor
        label = carrier(self._dtype)
        relabelled = (*CPU.dlpack, DLPACK_OF_DTYPE[label][0])
        with _reading:
            written = (tensor.device.code, tensor.device.index, tensor.dtype.code)
            if not _is_unused(self._capsule):
                raise UnsupportedTensorError("a DLPack capsule was consumed by someone else while it was read")
            if written != relabelled:
                tensor.device.code, tensor.device.index, tensor.dtype.code = relabelled
            try:
                array = np.from_dlpack(_Offer(self._capsule))
            finally:  # the struct stays alive behind the array: leave it as its producer wrote it
                if written != relabelled:
                    tensor.device.code, tensor.device.index, tensor.dtype.code = written
        if self.device.is_host and written[:2] != CPU.dlpack:
            # NumPy would export the label of page-locked memory from the struct, and torch refuse it.
            address, readonly = array.__array_interface__["data"]
            array = header_of(address, array.shape, array.strides, label, readonly=readonly, owner=array)
        return array if label == self._dtype else array.view(self._dtype)


def check_extent(address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> None:
    """Raise ValueError for memory that cannot be, as far as numbers tell. ``strides`` in bytes, None: dense rows.

    Refused are negative lengths, more than 2**63 bytes, address 0 behind entries, and entries before or
    past the address space.  Strides of axes of length 1 mean nothing.
    """
    if any(n < 0 for n in shape):
        raise ValueError(f"a negative length in shape {shape}")
    elements = 1
    for n in shape:
        elements *= max(n, 1)  # NumPy multiplies the other lengths of an empty shape too
    if elements * itemsize > _INT64_MAX:
        raise ValueError(f"shape {shape} of {itemsize}-byte entries takes more than 2**63 bytes")
    if 0 in shape:
        return
    below, end = 0, elements * itemsize
    if strides is not None:
        reaches = [step * (n - 1) for n, step in zip(shape, strides, strict=True)]
        below = sum(reach for reach in reaches if reach < 0)
        end = sum(reach for reach in reaches if reach > 0) + itemsize
    if max(end, -below) > _INT64_MAX:
        raise ValueError(f"shape {shape} with strides of {strides} bytes spans more than 2**63 bytes")
    if not address:
        raise ValueError(f"no memory behind shape {shape} (a meta, fake or freed tensor)")
    if not 0 < address + below <= address + end <= 2**64:
        raise ValueError(f"address {address:#x}, shape {shape} and strides {strides} lead out of the address space")


class _Offer:
    """Hands one capsule to a consumer that asks an object for it."""

    __slots__ = ("capsule",)

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU.dlpack


class _Bytes(ctypes.c_char * sys.maxsize):  # type: ignore[misc]
    """Writable memory from an address on: NumPy makes an array over it in half the time that `_Memory` takes."""

    __slots__ = ("owner",)

    owner: Any


class _Memory:
    """Memory described to NumPy by address; the array that NumPy makes of it keeps the owner alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def header_of(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    *,
    readonly: bool,
    owner: Any,
) -> np.ndarray:
    """An array header over memory at ``address`` that keeps ``owner`` alive. ``strides`` in bytes, None: dense rows.

    Nothing is read.  The caller vouches for address and extent.
    """
    if strides is not None and not readonly and (not strides or min(strides) >= 0):
        memory = _Bytes.from_address(address)
        memory.owner = owner
        return np.ndarray(shape, dtype, memory, 0, strides)
    label = carrier(dtype)
    interface = {"shape": shape, "typestr": label.str, "data": (address, readonly), "strides": strides, "version": 3}
    array = np.asarray(_Memory(interface, owner))
    return array if label == dtype else array.view(dtype)


def row_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of dense rows; an axis of length 0 counts as 1."""
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def owner_of(header: np.ndarray) -> Any:
    """What a header of `header_of`, or a view of one, keeps alive; None for other arrays."""
    base: Any = header
    while isinstance(base, np.ndarray):
        base = base.base
    return base.owner if isinstance(base, _Bytes | _Memory) else None


def capsule_of(array: np.ndarray, device: Device, *, max_version: tuple[int, int] | None, copied: bool = False) -> Any:
    """A capsule of ``array``, labelled with its true data type and ``device``.

    ``max_version`` as in the array API: None or a major version below 1 gives the legacy form.
    Raises BufferError for what the form cannot describe: byte order, strides that are no multiple
    of the item size, read-only memory in the legacy form.
    """
    label = carrier(array.dtype)
    source = array if label == array.dtype else array.view(label)
    capsule = source.__dlpack__(max_version=max_version)
    if device == CPU and label == array.dtype and source.__dlpack_device__() == CPU.dlpack and not copied:
        return capsule
    versioned = max_version is not None and max_version[0] >= 1
    address = _get_pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    if versioned:
        managed = _Versioned.from_address(address)
        if copied:
            managed.flags |= _IS_COPIED
        if label != array.dtype:
            managed.minor = max(managed.minor, _MINOR_OF_EXTENSIONS)
    start = address + _VERSIONED_HEAD if versioned else address
    place = _Device.from_address(start + _DEVICE_AT)
    place.code, place.index = device.dlpack
    if label != array.dtype:
        _Tensor.from_address(start).dtype.code = DLPACK_OF_DTYPE[array.dtype][0]
    return capsule


def _broken(producer: str, why: str) -> UnsupportedTensorError:
    return UnsupportedTensorError(f"{producer} cannot be read over DLPack: {why}")
