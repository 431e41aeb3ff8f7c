"""CUDA's virtual memory management at a host location: pinned memory whose pages can move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix_interop.runtime.cuda import CudaRuntime

__all__ = ["CudaVirtualMemory"]


class CudaVirtualMemory:
    """`VirtualMemory` on the NUMA node ``node``, which is that of device ``ordinal``."""

    def __init__(self, runtime: CudaRuntime, api: Any, ordinal: int, node: int) -> None:
        self._call = runtime.call
        self._call_on = runtime.call_on
        self._api = api
        self._ordinal = ordinal
        self._node = node
        self._access = [self._access_from(api.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA, node)] + [
            self._access_from(api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device)
            for device in range(runtime.device_count())
        ]
        minimum = api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._pages(), minimum))

    def reserve(self, nbytes: int) -> int:
        return int(self._call("cuMemAddressReserve", nbytes, self.granularity, 0, 0))

    def unreserve(self, address: int, nbytes: int) -> None:
        self._call("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> int:
        return int(self._call_on(self._ordinal, "cuMemCreate", nbytes, self._pages(), 0))

    def destroy(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        self._call("cuMemMap", address, nbytes, 0, handle, 0)
        try:
            # Without the host's own entry the CPU faults on the first touch.
            self._call("cuMemSetAccess", address, nbytes, self._access, len(self._access))
        except BaseException:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        self._call("cuMemUnmap", address, nbytes)

    def _pages(self) -> Any:
        """Pinned pages on the node. HOST_NUMA_CURRENT would be simpler, but drivers refuse it."""
        pages = self._api.CUmemAllocationProp()
        pages.type = self._api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        pages.location.type = self._api.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
        pages.location.id = self._node
        return pages

    def _access_from(self, kind: Any, number: int) -> Any:
        access = self._api.CUmemAccessDesc()
        access.location.type = kind
        access.location.id = number
        access.flags = self._api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access
