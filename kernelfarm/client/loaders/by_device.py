"""The target and the loader of a device of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from kernelfarm.client.loaders.contract import Loader, NotRunnableHereError


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """The target and the loader of a device."""

    target: str
    loader: Loader


def device_support(device: torch.device) -> DeviceSupport:
    """Target and loader of a device; the same object for the same device.

    Raises:
        NotRunnableHereError: no loader knows this kind of device.
    """
    index = device.index
    if device.type == "cuda" and index is None:
        index = torch.cuda.current_device()
    return _support(device.type, index or 0)


@lru_cache(maxsize=64)
def _support(kind: str, index: int) -> DeviceSupport:
    # A loader opens its device's library when it is imported, so import only the needed one.
    if kind == "cpu":
        from kernelfarm.client.loaders import cpu, host_target  # noqa: PLC0415

        return DeviceSupport(host_target.host_cpu_target(), cpu.CpuLoader())
    if kind == "cuda" and torch.version.cuda:
        from kernelfarm.client.loaders import cuda  # noqa: PLC0415

        return DeviceSupport(cuda.device_target(index), cuda.CudaLoader(index))
    raise NotRunnableHereError(f"no loader for device {kind}; expected cpu or cuda (NVIDIA)")
