"""Loads and launches cubins on NVIDIA GPUs by the driver's API, on torch's current stream."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache, partial
from typing import Any

import torch

from kernelfarm.client.loaders.contract import BoundKernel, LaunchCall, LaunchTimer, LoadedKernel
from kernelfarm.client.loaders.cuda_timer import CudaTimer
from kernelfarm.client.loaders.tensor_maps import BufferMap, MapEncoder
from kernelfarm.client.pytorch import private
from kernelfarm.errors import MalformedMessageError, UnavailableError
from kernelfarm.ir.artifact import (
    MAP_EXTENT,
    MAP_STRIDE,
    MAPS,
    TENSOR_MAP,
    BoundTensorMap,
    LaunchFacts,
)
from kernelfarm.targets import all_targets

_DRIVER = "libcuda.so.1"
_SUCCESS = 0
# CUDA Driver API, CUresult: CUDA_ERROR_INVALID_CONTEXT.
_INVALID_CONTEXT = 201
# CUDA Driver API, CUfunction_attribute: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
_MAX_DYNAMIC_SHARED = 8
# The shared memory of a kernel by default; more must be enabled first.
_DEFAULT_SHARED_BYTES = 48 * 1024
_POINTER_BYTES = 8


def device_target(index: int) -> str:
    """The target of a GPU, such as `cuda:sm_90a`.

    Raises:
        UnavailableError: no known target runs on it.
    """
    major, minor = torch.cuda.get_device_capability(index)
    best = best_target(major, minor, [t for t in all_targets() if t.startswith("cuda:")])
    if best is None:
        raise UnavailableError(f"no target for a GPU of compute capability {major}.{minor}")
    return best


def best_target(major: int, minor: int, targets: list[str]) -> str | None:
    """The best target for a compute capability: its own, or an older one of its generation.

    A name that ends in `a` is for one chip only; others also run on later chips of the generation.
    """
    best: tuple[int, str] | None = None
    for target in targets:
        match = re.fullmatch(r"cuda:sm_(\d+)(\d)(a?)", target)
        if match is None or int(match[1]) != major:
            continue
        own, is_exact = int(match[2]), match[3] == "a"
        if own == minor or (own < minor and not is_exact):
            best = max(best or (own, target), (own, target))
    return None if best is None else best[1]


class CudaLoader:
    """Loads cubins for one GPU, in the context that torch uses."""

    def __init__(self, index: int) -> None:
        self._index = index
        torch.cuda.current_stream(index)  # makes torch's context
        self._context = ctypes.c_void_p()
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), index))

    def load(self, binary: bytes, launch: LaunchFacts) -> LoadedKernel:
        """The kernel of a cubin.

        Raises:
            MalformedMessageError: the driver refuses the bytes, or they lack the symbol.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        _check(driver.cuCtxPushCurrent_v2(self._context))
        try:
            status = driver.cuModuleLoadData(ctypes.byref(module), binary)
            if status != _SUCCESS:
                raise MalformedMessageError(f"cubin of {launch.symbol}: {_message(status)}")
            status = driver.cuModuleGetFunction(
                ctypes.byref(function), module, launch.symbol.encode()
            )
            if status != _SUCCESS:
                raise MalformedMessageError(f"cubin without {launch.symbol}: {_message(status)}")
            if launch.shared_bytes > _DEFAULT_SHARED_BYTES:
                _check(
                    driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, launch.shared_bytes)
                )
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return _CudaKernel(function, launch, self._index)

    def failed(self, status: int, launch: LaunchCall, name: str) -> None:
        """Handles a failed launch: a new thread (of autograd, for example) lacks a context.

        Raises:
            UnavailableError: the driver refused the launch for another reason.
        """
        if status == _INVALID_CONTEXT:  # the same as CUDA's runtime does
            _check(_driver().cuCtxSetCurrent(self._context))
            status = launch()
        if status != _SUCCESS:
            raise UnavailableError(f"launch of {name}: {_message(status)}")

    def timer(self) -> LaunchTimer:
        """A timer by the device's events."""
        major, minor = divmod(_driver_version(), 1000)
        return CudaTimer(self._index, f"{major}.{minor // 10}")

    def context(self) -> int:
        """The raw handle of torch's current stream."""
        return int(private._cuda_getCurrentRawStream(self._index))


class _CudaKernel:
    """A function of a loaded module; callers make its device the current one before a launch."""

    def __init__(self, function: ctypes.c_void_p, facts: LaunchFacts, index: int) -> None:
        self._function, self._facts, self._index = function, facts, index

    def bind(self, sizes: tuple[int, ...]) -> BoundKernel:
        """The kernel with its grid and arguments for these sizes."""
        facts = self._facts
        names = {f"s{number}": value for number, value in enumerate(sizes)}
        grid = [extent.evaluate(names) for extent in facts.grid]
        if 0 in grid:
            return lambda table, stream: _launch_nothing
        extents = ((*grid, 1, 1)[:3], (facts.num_warps * facts.warp_size, 1, 1))
        arguments = _Arguments(facts, sizes, _map_encoder() if facts.tensor_maps else None)
        launch_in = _driver().cuLaunchKernelEx
        function = ctypes.c_void_p.from_param(self._function.value)

        def bound(table: int, stream: int) -> LaunchCall:
            config = _launch_config(extents, facts, stream)
            pointers, maps = arguments.of_table(table)
            # Objects that ctypes need not convert at a launch; `byref` holds a reference. A launch
            # is one call of the driver, without a frame of Python if no map follows an address.
            launch = partial(
                launch_in, ctypes.byref(config), function, ctypes.byref(pointers), None
            )
            return _following(maps, launch) if maps else launch

        return bound


def _following(maps: list[BufferMap], launch: LaunchCall) -> LaunchCall:
    """A launch behind a look at the addresses of its tensor maps."""

    def run() -> int:
        for made in maps:
            if made.place.value != made.address and (status := made.follow()) != _SUCCESS:
                return status
        return launch()

    return run


def _launch_nothing() -> int:
    return 0


class _LaunchConfig(ctypes.Structure):
    """CUDA Driver API, CUlaunchConfig: extents of grid and block, shared memory, stream."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z")),
        *((name, ctypes.c_uint) for name in ("block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _LaunchAttribute(ctypes.Structure):
    """CUDA Driver API, CUlaunchAttribute: its kind, and 64 bytes of which a flag takes four."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("flag", ctypes.c_int),
        ("rest", ctypes.c_byte * 60),
    )


# CUDA Driver API: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
_MAY_START_EARLY = _LaunchAttribute(6, 0, 1)


def _launch_config(
    extents: tuple[tuple[int, ...], tuple[int, ...]], facts: LaunchFacts, stream: int
) -> _LaunchConfig:
    """The configuration of a launch with this grid and block.

    A kernel that waits itself for the one ahead may start before that has ended.
    """
    config = _LaunchConfig(*extents[0], *extents[1], facts.shared_bytes, stream)
    if facts.programmatic_launch:
        config.attributes, config.attribute_count = ctypes.addressof(_MAY_START_EARLY), 1
    return config


class _Arguments:
    """The arguments of a launch: an array with a pointer to each value."""

    def __init__(
        self, facts: LaunchFacts, sizes: tuple[int, ...], encoder: MapEncoder | None = None
    ) -> None:
        """`encoder` makes the tensor maps, if there are some.

        Raises:
            MalformedMessageError: the sizes give a map that the driver does not take.
        """
        self._encoder = encoder
        self._words = facts.arguments
        names = {f"s{number}": value for number, value in enumerate(sizes)}
        self._maps = [made.at(names) for made in facts.tensor_maps]
        self._sizes = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        self._null = ctypes.c_void_p(None)

    def of_table(self, table: int) -> tuple[Any, list[BufferMap]]:
        """The array for the buffers of a pointer table, and the tensor maps that it has."""
        buffers, sizes = table, ctypes.addressof(self._sizes)
        values: list[int] = []
        maps = [] if self._encoder is None else [self._map(table, made) for made in self._maps]
        numbers = [number for made in maps for number in made.numbers()]
        left, own = iter(maps), iter(numbers)
        for word in self._words:
            if word == "buffer":
                values.append(buffers)
                buffers += _POINTER_BYTES
            elif word == "size":
                values.append(sizes)
                sizes += ctypes.sizeof(ctypes.c_int64)
            elif word in MAPS:
                values.append(next(left).memory)
            elif word in (MAP_EXTENT, MAP_STRIDE):
                values.append(ctypes.addressof(next(own)))
            elif word == "scratch":
                values.append(ctypes.addressof(self._null))
            else:
                raise MalformedMessageError(
                    f"argument {word!r}; expected buffer, size, scratch or {TENSOR_MAP}"
                )
        pointers = (ctypes.c_void_p * len(values))(*values)
        # What holds the array holds what it points to.
        pointers.owner = (self, maps, numbers)  # type: ignore[attr-defined]
        return pointers, maps

    def _map(self, table: int, made: BoundTensorMap) -> BufferMap:
        assert self._encoder is not None  # only launches with an encoder have maps
        return BufferMap(made, table + made.facts.buffer * _POINTER_BYTES, self._encoder)


@lru_cache(maxsize=1)
def _map_encoder() -> MapEncoder:
    """The driver's maker of tensor maps, which needs no context.

    Raises:
        UnavailableError: the driver is older than tensor maps.
    """
    encode = getattr(_driver(), "cuTensorMapEncodeTiled", None)
    if encode is None:
        raise UnavailableError(
            f"{_DRIVER} has no tensor maps; install NVIDIA's driver 525 or later"
        )
    return MapEncoder(encode, _driver_version())


def _driver_version() -> int:
    """The newest CUDA that the driver knows, such as 13010 for 13.1."""
    version = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(version)))
    return version.value


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise UnavailableError(f"{_DRIVER}: {error}; install NVIDIA's driver") from error
    pointer = ctypes.c_void_p
    driver.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    driver.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    driver.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    driver.cuCtxPushCurrent_v2.argtypes = [pointer]
    driver.cuCtxSetCurrent.argtypes = [pointer]
    return driver


def _check(status: int) -> None:
    if status != _SUCCESS:
        raise UnavailableError(f"CUDA driver: {_message(status)}")


def _message(status: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"
