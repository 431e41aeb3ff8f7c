"""DLPack from both ends, built with ctypes: a producer that forges any field and counts, and a plain consumer.

The structures are written down here once more, from dlpack.h, so that a mistake in the library's
own cannot hide itself.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["NULL", "Producer", "Received", "consume", "live_structs"]

#: Forges a NULL pointer: data, shape, strides or deleter.
NULL: Final = object()

_CODES: Final = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Legacy(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# By address: in its destructor a capsule has no references left, and must not get one.
_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ctypes.cast(ctypes.pythonapi.PyCapsule_IsValid, ctypes.c_void_p).value
)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ctypes.cast(ctypes.pythonapi.PyCapsule_GetPointer, ctypes.c_void_p).value
)

_NAMES: Final = (b"dltensor", b"dltensor_versioned")
_structs: dict[int, tuple[Any, ...]] = {}  # address -> the structure, its arrays, its memory and its producer
_lock = threading.Lock()


def live_structs() -> int:
    """How many structures have been made and not yet been deleted."""
    return len(_structs)


@_CALLBACK
def _delete(address: int) -> None:
    with _lock:
        *_, producer = _structs.pop(address, (None, None))
    if producer is not None:
        producer.deleted += 1
    else:
        Producer.stray_deletes += 1


@_CALLBACK
def _destroy(capsule: int) -> None:
    """As the DLPack text has it: an unused capsule frees its tensor, a used one does not."""
    for name in _NAMES:
        if _valid_at(capsule, name):
            address = _pointer_at(capsule, name)
            struct = _structs[address][0]
            if struct.deleter:
                _CALLBACK(struct.deleter)(address)


class Producer:
    """Exports ``array`` over DLPack, with ``forged`` fields in place of the true ones.

    ``forged``: device (type, id), method (what ``__dlpack_device__`` answers, if not the same), data, ndim,
    dtype (code, bits, lanes), shape, strides (in entries), byte_offset, flags, version, deleter, name.
    ``forms``: which capsules it makes: "both" as ``max_version`` asks, "versioned", "legacy" (which knows no
    keywords but ``stream``).  ``raises``: raised by ``__dlpack__``; ``device_raises``: by the other method.
    ``offers``: handed out in place of a capsule.

    ``made`` and ``deleted`` count structures, ``calls`` holds the keywords of each ``__dlpack__`` call.
    """

    #: Deleter calls for structures that were deleted before.
    stray_deletes = 0

    def __init__(
        self,
        array: np.ndarray,
        *,
        forms: str = "both",
        raises: BaseException | None = None,
        device_raises: BaseException | None = None,
        offers: Any = None,
        **forged: Any,
    ) -> None:
        self.array = array
        self.forms = forms
        self.raises = raises
        self.device_raises = device_raises
        self.offers = offers
        self.forged = forged
        self.made = self.deleted = 0
        self.calls: list[dict[str, Any]] = []

    def forget(self) -> None:
        """Drop the structures that nobody can delete: those without a deleter, or behind a wrong name."""
        with _lock:
            for address in [address for address, struct in _structs.items() if struct[-1] is self]:
                del _structs[address]

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device_raises is not None:
            raise self.device_raises
        answer: tuple[int, int] = self.forged.get("method", self.forged.get("device", (1, 0)))
        return answer

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append(keywords)
        if self.raises is not None:
            raise self.raises
        if self.forms == "legacy" and set(keywords) - {"stream"}:
            raise TypeError(f"unexpected keywords {sorted(keywords)}")
        if self.offers is not None:
            return self.offers
        wanted = keywords.get("max_version")
        return self.capsule(versioned=self.forms == "versioned" or (wanted is not None and wanted[0] >= 1))

    def capsule(self, *, versioned: bool) -> Any:
        """A new capsule with the forged fields."""
        array, forged = self.array, self.forged
        struct = _Versioned() if versioned else _Legacy()
        tensor = struct.tensor
        shape = forged.get("shape", array.shape)
        strides = forged.get("strides", tuple(step // array.itemsize for step in array.strides))
        arrays = []
        for name, values in (("shape", shape), ("strides", strides)):
            if values is NULL:
                continue
            block = (ctypes.c_int64 * max(len(values), 1))(*values)
            arrays.append(block)
            setattr(tensor, name, ctypes.addressof(block))
        data = forged.get("data", array.ctypes.data)
        tensor.data = None if data is NULL else data
        tensor.device_type, tensor.device_id = forged.get("device", (1, 0))
        tensor.ndim = forged.get("ndim", array.ndim if shape is NULL else len(shape))
        kind = (_CODES[array.dtype.kind], 8 * array.itemsize, 1)
        tensor.code, tensor.bits, tensor.lanes = forged.get("dtype", kind)
        tensor.byte_offset = forged.get("byte_offset", 0)
        if isinstance(struct, _Versioned):
            struct.major, struct.minor = forged.get("version", (1, 0))
            struct.flags = forged.get("flags", 0)
        if forged.get("deleter") is not NULL:
            struct.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
        address = ctypes.addressof(struct)
        with _lock:
            _structs[address] = (struct, arrays, array, self)
        self.made += 1
        name = forged.get("name", _NAMES[versioned])
        return _new_capsule(address, name, ctypes.cast(_destroy, ctypes.c_void_p).value)


_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_USED: Final = (b"used_dltensor", b"used_dltensor_versioned")


class Received(NamedTuple):
    """What a capsule said: the values (host memory only), device, (code, bits, lanes), strides, flags, version."""

    data: bytes | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    flags: int | None
    version: tuple[int, int] | None


def consume(capsule: Any) -> Received:
    """Read a capsule of dense rows field by field, as a consumer without any library does, and call its deleter."""
    versioned = bool(_valid(capsule, _NAMES[1]))
    address = _pointer(capsule, _NAMES[versioned])
    struct = (_Versioned if versioned else _Legacy).from_address(address)
    tensor = struct.tensor
    shape, strides = (
        tuple((ctypes.c_int64 * tensor.ndim).from_address(block)) if tensor.ndim else ()
        for block in (tensor.shape, tensor.strides)
    )
    nbytes = int(np.prod(shape, dtype=object)) * tensor.bits // 8
    on_host = tensor.device_type == 1
    received = Received(
        ctypes.string_at(tensor.data + tensor.byte_offset, nbytes) if on_host and nbytes else None,
        shape,
        strides,
        (tensor.device_type, tensor.device_id),
        (tensor.code, tensor.bits, tensor.lanes),
        struct.flags if versioned else None,
        (struct.major, struct.minor) if versioned else None,
    )
    _rename(capsule, _USED[versioned])
    _CALLBACK(struct.deleter)(address)
    return received
