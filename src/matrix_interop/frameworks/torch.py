"""PyTorch.

What it cannot do, measured with 2.13: `torch.from_dlpack` ends the process on negative strides and
drops the read-only flag, DLPack export ignores a negative bit, and fake, zero and freed tensors
export a null pointer.  So host memory goes through `torch.from_numpy` and `Tensor.numpy`, which
refuse all of these and are faster too, after checks of our own for the two that they let pass:
read-only and misaligned memory.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, Final, cast

import numpy as np
import torch
import torch.utils.dlpack

from matrix_interop.devices import CPU, CUDA_DEVICES, Device, as_device
from matrix_interop.dlpack import capsule_of, header_of
from matrix_interop.dtypes import DLPACK_OF_DTYPE, carrier, is_extension
from matrix_interop.errors import UnsupportedDtypeError, UnsupportedTensorError
from matrix_interop.frameworks.registry import Framework, Order, own_capsule
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import DeviceView, HostView, Pending, TensorView

#: NumPy dtype -> torch dtype, for all that this torch knows and NumPy can hold.
_TORCH_OF_NUMPY: Final[dict[np.dtype[Any], torch.dtype]] = {
    dtype: kind for dtype in DLPACK_OF_DTYPE if isinstance(kind := getattr(torch, dtype.name, None), torch.dtype)
}
_NUMPY_OF_TORCH: Final = {kind: dtype for dtype, kind in _TORCH_OF_NUMPY.items()}
_WHOLE_NUMBER: Final = {1: torch.int8, 2: torch.int16}  # what carries an extension type of that size into NumPy
_Tensor: Final = torch.Tensor
_from_numpy: Final = torch.from_numpy
_device_view: Final = DeviceView.of_tensor
_LEGACY: Final = 1
#: A build without CUDA and ROCm: its tensors are on the host, or are refused by `Tensor.numpy`.
_HOST_ONLY: Final = torch.version.cuda is None and torch.version.hip is None
#: Bits of an ndarray's ``flags.num`` (NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_OWNDATA).
_DENSE: Final = 0x1
_DENSE_OR_OWN: Final = _DENSE | 0x4
#: The C importer behind `torch.from_dlpack`: it takes the capsule as it is and orders nothing, which is done before.
#: Missing from builds without CUDA. torch.cuda.current_stream() builds an object, twenty times slower.
_current_stream: Final[Any] = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_to_capsule: Final = cast(Any, torch.utils.dlpack).to_dlpack
_from_capsule: Final[Any] = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


class TorchFramework(Framework):
    """`torch.Tensor` and its subclasses."""

    name = "torch"
    device_types = ("cpu", "cuda", "oneapi", "metal")
    _devices: tuple[Device, ...] = (CPU,)

    def owns(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    def view(self, x: torch.Tensor, fill: Any = None) -> TensorView:
        if type(x) is _Tensor and (_HOST_ONLY or x.is_cpu):
            try:  # numpy() itself refuses other devices, grad, conjugate and negative bits, sparse, quantised
                header = x.numpy()
            except (RuntimeError, TypeError):
                return self._careful_view(x)
            if header.flags.num & _DENSE_OR_OWN == _DENSE or _is_shared(header):  # flag by flag it takes twice as long
                view = HostView()
                view.header = header
                view.framework = "torch"
                view.native = x
                return view
        elif type(x) is _Tensor and x.is_cuda:
            there = _cuda_view(x)
            if there is not None:
                return there
        return self._careful_view(x)

    def _careful_view(self, x: torch.Tensor) -> TensorView:
        """Any other tensor: on a device, with something pending, or of a subclass."""
        what = f"torch {x.dtype} {'nested' if x.is_nested else tuple(x.shape)} on {x.device}"
        _require_memory(x, what)
        dtype = _NUMPY_OF_TORCH.get(x.dtype)
        if dtype is None:
            wide = "torch.complex64" if x.dtype.is_complex else "torch.float32"
            msg = f"{what}: NumPy and DLPack have no such type; convert it first, for example with x.to({wide})"
            raise UnsupportedDtypeError(msg)
        note = "detached from its graph" if x.requires_grad else ""
        plain = x.detach()
        strides = tuple(step * dtype.itemsize for step in plain.stride())
        repeats = 0 in strides and plain.numel() > 0 and not plain.is_contiguous()
        device, shape = as_device(x.device), tuple(plain.shape)
        bits = [word for word, set_ in (("conjugate", plain.is_conj()), ("negative", plain.is_neg())) if set_]
        pending = None
        if bits:

            def write(out: np.ndarray) -> None:
                if out.dtype in _TORCH_OF_NUMPY:
                    self.wrap(out).copy_(plain)
                else:  # a type that torch lacks: by way of one more copy
                    np.copyto(out, plain.resolve_conj().resolve_neg().numpy(), casting="unsafe")

            pending = Pending(f"a pending {' and '.join(bits)} bit", write)
        if not device.is_host:
            return DeviceView.of_tensor(
                plain,
                "torch",
                device,
                plain.data_ptr(),
                shape,
                strides,
                dtype,
                readonly=repeats,
                note=note,
                pending=pending,
            )
        if pending is not None:
            header = header_of(plain.data_ptr(), shape, strides, dtype, readonly=repeats, owner=plain)
            return TensorView.of(header, "torch", None, device, pending, note)
        # By numpy(), after which torch refuses to resize the storage: an address alone would be left dangling.
        labelled = plain.view(_WHOLE_NUMBER[dtype.itemsize]) if is_extension(dtype) else plain
        header = labelled.as_subclass(_Tensor).numpy().view(dtype)
        if repeats:
            header.flags.writeable = False
        return TensorView.of(header, "torch", plain, device, note=note)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        if dtype in _TORCH_OF_NUMPY:
            return None
        if dtype.newbyteorder("=") in _TORCH_OF_NUMPY:
            return None  # the byte order is an obstacle, the type is not
        return f"torch {torch.__version__} has no {dtype}: ask for dtype='float32' or another type that it has"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        flags = header.flags
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"torch has no {header.dtype.byteorder}-endian numbers")
        if not flags.aligned:
            return Obstacle(Reason.ALIGNMENT, f"the address or a stride is no multiple of what {header.dtype} needs")
        if header.size and not flags.c_contiguous:
            size = header.itemsize
            if any(step % size for n, step in zip(header.shape, header.strides, strict=True) if n > 1):
                return Obstacle(Reason.STRIDES, f"a stride is no multiple of the {size} bytes of an entry")
            if any(step < 0 for n, step in zip(header.shape, header.strides, strict=True) if n > 1):
                return Obstacle(Reason.NEGATIVE_STRIDE, "torch has no negative strides")
        if not flags.writeable and not share_readonly:
            return Obstacle(
                Reason.READONLY,
                "torch cannot keep memory read-only; share_readonly=True shares it and you promise not to write",
            )
        return None

    def wrap(self, header: np.ndarray) -> torch.Tensor:
        dtype = header.dtype
        label = carrier(dtype)
        plain = header if label == dtype else header.view(label)
        if not header.flags.writeable or any(step < 0 or step % header.itemsize for step in header.strides):
            # share_readonly, or an odd stride on an axis where it does not count: describe the memory anew
            strides = None  # of an empty tensor none counts
            if header.size:
                strides = tuple(0 if n < 2 else step for n, step in zip(header.shape, header.strides, strict=True))
            address = int(header.__array_interface__["data"][0])
            plain = header_of(address, header.shape, strides, label, readonly=False, owner=header)
        tensor = torch.from_numpy(plain)
        return tensor if label == dtype else tensor.view(_TORCH_OF_NUMPY[dtype])

    def fits(self, view: TensorView, share_readonly: bool = False) -> bool:
        # What other frameworks hand over is aligned; objects known by protocol only may bring anything.
        if type(view) is DeviceView and view.dtype in _TORCH_OF_NUMPY and (share_readonly or not view.readonly):
            strides = view.strides
            return not strides or min(strides) >= 0
        return super().fits(view, share_readonly)

    def capsule(self, native: torch.Tensor) -> Any:
        return _to_capsule(native)

    def wrap_device(self, view: TensorView) -> Any:
        strides = view.strides
        backwards = bool(strides) and min(strides) < 0  # on an axis where no stride counts; torch would end the process
        own = None if backwards else own_capsule(view)
        if own is not None:
            try:
                return _from_capsule(own)
            except (BufferError, RuntimeError):  # torch takes managed memory only under another label
                pass
        if backwards or view.readonly:
            strides = tuple([abs(step) for step in strides])
            header = header_of(view.pointer, view.shape, strides, view.dtype, readonly=False, owner=view)
        else:
            header = view.header
        return _from_capsule(capsule_of(header, view.device, max_version=None))

    def quick(self, header: np.ndarray, share_readonly: bool = False) -> Any:
        flags = header.flags
        if flags.behaved:  # aligned and writable: all that from_numpy does not check itself
            try:
                return _from_numpy(header)
            except (TypeError, ValueError):
                pass
        elif share_readonly and flags.c_contiguous and flags.aligned and min(header.strides, default=0) >= 0:
            try:  # from_numpy would warn; the importer of capsules takes read-only memory without a word
                return _from_capsule(capsule_of(header, CPU, max_version=(1, 0)))
            except (BufferError, KeyError, RuntimeError):  # byte order, a type that torch lacks, an old torch
                pass
        return super().quick(header, share_readonly) if share_readonly else None

    def alias(self, native: torch.Tensor) -> torch.Tensor:
        return native.detach()

    def item(self, native: torch.Tensor, key: Any) -> Any:
        if isinstance(key, slice) and key.step is not None and key.step < 0:
            return None
        return native[key]

    def namespace(self) -> ModuleType:
        import array_api_compat.torch

        return array_api_compat.torch

    def devices(self) -> tuple[Device, ...]:
        if len(self._devices) == 1 and torch.cuda.is_available():  # once there, they stay
            self._devices = (CPU, *(CUDA_DEVICES[index] for index in range(torch.cuda.device_count())))
        return self._devices

    def current_device(self) -> Device:
        return CUDA_DEVICES[torch.cuda.current_device()] if torch.cuda.is_available() else CPU

    def current_stream(self, device: Device) -> int:
        if device.type != "cuda":
            return super().current_stream(device)
        return _current_stream(device.index) or _LEGACY

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> torch.Tensor:
        return torch.empty(shape, dtype=_TORCH_OF_NUMPY[dtype], device=_torch_device(device))

    def copy(self, native: torch.Tensor, dtype: np.dtype[Any], order: Order) -> torch.Tensor:
        kind = _TORCH_OF_NUMPY[dtype]
        if order == "C":
            return torch.empty(native.shape, dtype=kind, device=native.device).copy_(native)
        axes = tuple(reversed(range(native.ndim)))
        reversed_ = native.permute(axes)
        return torch.empty(reversed_.shape, dtype=kind, device=native.device).copy_(reversed_).permute(axes)

    def keep_until(self, native: torch.Tensor, stream: int, device: Device) -> None:
        native.record_stream(_stream(stream, device))


def _is_shared(header: np.ndarray) -> bool:
    """Whether ``header`` from `Tensor.numpy` is over the tensor's memory; where its entries repeat, it is protected."""
    flags = header.flags
    if flags.owndata and header.size:  # over freed storage NumPy makes an array of its own
        return False
    if not flags.c_contiguous and 0 in header.strides:  # expand()
        flags.writeable = False
    return True


def _cuda_view(x: torch.Tensor) -> DeviceView | None:
    """A plain CUDA tensor without the questions that only others need; None for one that may be another."""
    dtype = _NUMPY_OF_TORCH.get(x.dtype)
    if dtype is None or x.requires_grad or x.is_conj() or x.is_neg():
        return None
    try:
        address, size = x.data_ptr(), dtype.itemsize
        strides = tuple([step * size for step in x.stride()])
    except RuntimeError:  # sparse and nested tensors, and those of a torch.func transform
        return None
    if not address or 0 in strides:  # empty, or entries share memory
        return None
    return _device_view(x, "torch", CUDA_DEVICES[x.get_device()], address, x.shape, strides, dtype)


@lru_cache(maxsize=64)
def _stream(handle: int, device: Device) -> Any:
    """torch's object for a stream; making one takes 5 us. The legacy default stream is none of the external ones."""
    place, cuda = _torch_device(device), cast(Any, torch.cuda)  # untyped in torch
    return cuda.default_stream(place) if handle == _LEGACY else cuda.ExternalStream(handle, device=place)


def _torch_device(device: Device) -> torch.device:
    names = {"oneapi": "xpu", "metal": "mps"}
    return torch.device("cpu") if device.is_host else torch.device(names.get(device.type, device.type), device.index)


def _require_memory(x: torch.Tensor, what: str) -> None:
    """Raise `UnsupportedTensorError` for tensors without plain memory of their own."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(x, FakeTensor):
        why = "a fake tensor has no values: run the code for real"
    elif x.is_meta:
        why = "a meta tensor has no values: materialise it with torch.empty_like(x, device='cpu')"
    elif x.is_nested:
        why = "a nested tensor has rows of several lengths: pad it with torch.nested.to_padded_tensor"
    elif x.layout is not torch.strided:
        why = f"its layout is {x.layout}: call x.to_dense()"
    elif x.is_quantized:
        why = "it is quantised: call x.dequantize() or x.int_repr()"
    elif x._is_zerotensor():
        why = "a zero tensor has no memory: clone it"
    elif torch._C._functorch.is_functorch_wrapped_tensor(x):
        why = "it belongs to a torch.func transform (vmap, grad): convert the result of the transform"
    else:
        try:
            freed = not x.data_ptr() and x.numel() > 0
        except RuntimeError as error:
            why = f"torch gives no address for it ({error})"
        else:
            if not freed:
                return
            why = "its storage was freed or resized away"
    msg = f"{what} cannot be read: {why}"
    raise UnsupportedTensorError(msg)
