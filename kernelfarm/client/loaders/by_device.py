"""The target and the loader of a device of this machine.

Loaders of vendors outside of this repository are entry points of the group `kernelfarm.loaders`:
the name is the vendor's, the value a `FindSupport`. They are asked for devices that no loader here
knows, and for this machine's processor if the settings name a target of their vendor.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

import torch

from kernelfarm.client.loaders.contract import DeviceSupport, FindSupport, NotRunnableHereError
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import UnavailableError

ENTRY_POINT_GROUP = "kernelfarm.loaders"


def device_support(device: torch.device) -> DeviceSupport:
    """Target and loader of a device; the same object for the same device.

    Raises:
        NotRunnableHereError: no loader knows this kind of device.
        UnavailableError: the loader of a vendor's package cannot be imported.
    """
    index = device.index
    if device.type == "cuda" and index is None:
        index = torch.cuda.current_device()
    return _support(device.type, index or 0)


def target_of(device: torch.device) -> str | None:
    """The target of a device; None if no loader knows this kind of device.

    Raises:
        UnavailableError: the loader of a vendor's package cannot be imported.
    """
    try:
        return device_support(device).target
    except NotRunnableHereError:
        return None


def host_support() -> DeviceSupport:
    """Target and loader for tensors in this machine's memory.

    Raises:
        CallerError: the processor does not run the target of the settings, or runs no known one.
        UnavailableError: the loader of a vendor's package cannot be imported.
    """
    return device_support(torch.device("cpu"))


@lru_cache(maxsize=64)
def _support(kind: str, index: int) -> DeviceSupport:
    # A loader opens its device's library when it is imported, so import only the needed one.
    requested = client_settings().host_target
    # Finding plug-ins reads every package's metadata.
    if kind == "cpu" and (not requested or _vendor(requested) not in _plugins()):
        from kernelfarm.client.loaders import cpu, host_target  # noqa: PLC0415

        return DeviceSupport(host_target.host_cpu_target(), cpu.CpuLoader())
    if kind == "cuda" and torch.version.cuda:
        from kernelfarm.client.loaders import cuda  # noqa: PLC0415

        return DeviceSupport(cuda.device_target(index), cuda.CudaLoader(index))
    for vendor, plugin in _plugins().items():
        found = _load(plugin)(torch.device(kind, index), requested)
        if found is not None and _vendor(found.target) == vendor:
            return found
    raise NotRunnableHereError(_refusal(kind, requested))


def _vendor(target: str) -> str:
    return target.partition(":")[0]


@lru_cache(maxsize=1)
def _plugins() -> dict[str, EntryPoint]:
    """The loaders of installed packages by vendor, in sorted order."""
    return {point.name: point for point in sorted(entry_points(group=ENTRY_POINT_GROUP))}


def _load(plugin: EntryPoint) -> FindSupport:
    try:
        loaded: FindSupport = plugin.load()
    except ImportError as error:
        raise UnavailableError(
            f"the loader of vendor {plugin.name} cannot be imported from {plugin.value}: {error};"
            " install its package again"
        ) from error
    return loaded


def _refusal(kind: str, requested: str) -> str:
    expected = " or ".join(["cpu", "cuda (NVIDIA)", *(f"one of {name}" for name in _plugins())])
    stated = f" with KERNELFARM_HOST_TARGET={requested}" if requested and kind == "cpu" else ""
    return f"no loader for device {kind}{stated}; expected {expected}"
