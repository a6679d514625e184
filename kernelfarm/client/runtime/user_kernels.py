"""Launches users' kernels: the farm's binary on the tensors of a call, with the node's grid.

The node changes nothing, so the kernel works on copies of the tensors that it changes, and on new
memory in place of a tensor without content.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kernelfarm.client.loaders.contract import LaunchCall, LaunchTimer, Loader, TimesLaunches
from kernelfarm.client.loaders.tuned_kernels import MEASURE
from kernelfarm.client.loaders.variants import (
    GuardedKernel,
    LoadedVariant,
    address_holds,
    bind_variants,
)
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.runtime.configuration_keys import (
    configuration_key,
    evaluated_size,
    launched_number,
)
from kernelfarm.client.runtime.fleet_choice import MOST_CANDIDATES, FleetChoice
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.tuning import WINNERS, NotMeasured, TimeLimit, fastest
from kernelfarm.digest import tuning_digest
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Node, TensorType, contiguous_strides
from kernelfarm.ir.triton.node import check_node, written_arguments
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer
from kernelfarm.tuning import TuningSubject


@dataclass(frozen=True, slots=True)
class _Fresh:
    """Memory without content that each launch gets."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def made(self, device: torch.device) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class _Configuration:
    """A compiled configuration: its variants, bound to sizes, and the programs of its grid."""

    variants: tuple[GuardedKernel, ...]
    programs: int


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch on the buffers of a table; `memory` is what it reads and must live as long."""

    call: LaunchCall
    loader: Loader
    name: str
    memory: object

    def __call__(self) -> None:
        status = self.call()
        if status:
            self.loader.failed(status, self.call, self.name)


class UserKernelLaunch:
    """One node's kernel, bound to the sizes of a layout.

    A call takes the tensors of the node's arguments in order, and a stream; it returns the tensors
    that the kernel changed. `variants` has the variants of each compiled configuration by its
    number; the fastest one is launched. `extents` are the elements of the arguments' buffers.
    """

    def __init__(
        self,
        node: Node,
        variants: Sequence[tuple[int, Sequence[LoadedVariant]]],
        extents: Sequence[int],
        sizes: Mapping[str, int],
        program: BoundProgram,
    ) -> None:
        kernels = check_node(node)
        kernel = kernels[0]
        self._name, self._program = kernel.entry, program
        self._loader, self._device = program.loader, program.captured.device
        results = dict(zip(written_arguments(node), node.types, strict=True))
        pointers = [n for n, param in enumerate(kernel.launched) if isinstance(param, Pointer)]
        self._written = [pointers.index(position) for position in results]
        self._fresh = {
            pointers.index(n): _fresh(results[n], sizes) for n in results if node.args[n] is None
        }
        given = iter(extents)
        spans = [
            span_elems(self._fresh[n].shape, self._fresh[n].strides)
            if n in self._fresh
            else next(given)
            for n in range(len(pointers))
        ]
        scalars = {
            position: launched_number(arg, param.dtype, sizes)
            for position, (param, arg) in enumerate(zip(kernel.launched, node.args, strict=True))
            if not isinstance(param, Pointer)
        }
        grids = _grids(node, sizes)
        self._configurations = [
            _Configuration(
                bind_variants(found, spans, (*scalars.values(), *grids[number])),
                math.prod(grids[number]),
            )
            for number, found in _checked(variants, len(grids))
        ]
        compiled, values = configuration_key(node, [number for number, _ in variants], sizes)
        self._tuning_key = (compiled, str(self._device), values)
        self._winner = None if len(self._configurations) > 1 else 0
        self._choice: FleetChoice | None = None
        self._not_measured = NotMeasured()

    def __call__(self, tensors: Sequence[torch.Tensor], stream: int) -> tuple[torch.Tensor, ...]:
        """The changed tensors.

        Raises:
            UnavailableError: the device refuses the launch.
        """
        given = list(tensors)
        for number, fresh in self._fresh.items():
            given.insert(number, fresh.made(self._device))
        originals = {n: given[n] for n in self._written if n not in self._fresh}
        for number, original in originals.items():
            given[number] = own_copy(original)
        winner = self._winner
        if winner is None:
            winner = self._chosen_configuration(given, originals, stream)
        self._launch(self._configurations[winner], given, stream)()
        return tuple(given[number] for number in self._written)

    def _chosen_configuration(
        self, given: Sequence[torch.Tensor], originals: Mapping[int, torch.Tensor], stream: int
    ) -> int:
        """The fastest configuration; measures it if that was not done and may be done.

        Measured launches work on the copies that this call made anyway. The copies have the
        elements of their originals before each launch, and also in the end. So the call computes
        what it would without measuring, whatever the kernel does to its arguments.
        """
        known = WINNERS.find(self._tuning_key)
        if known is None:
            if not self._program.tuning.limit_s:
                self._not_measured.say("setting", "the setting `autotune` is `first`", self._name)
                return 0
            timer = self._loader.timer() if isinstance(self._loader, TimesLaunches) else None
            if timer is None:
                text = f"{self._device} measures no launches"
                self._not_measured.say("device", text, self._name)
                return 0
            obstacle = timer.obstacle()
            choice = self._fleet_choice(timer)
            advice = MEASURE if choice is None else choice.advice(can_measure=not obstacle)
            if (winner := advice.winner) is not None:
                if not advice.is_final:
                    return winner
                known = WINNERS.find_or_measure(self._tuning_key, lambda: winner)
            elif not advice.should_measure:
                text = "other clients of the farm measure the configurations"
                self._not_measured.say("others", text, self._name)
                return 0
            elif obstacle:
                self._not_measured.say("recording", obstacle, self._name)
                return 0
            else:
                known = self._measured(timer, choice, given, originals, stream)
        self._winner = known
        return known

    def _fleet_choice(self, timer: LaunchTimer) -> FleetChoice | None:
        """The choice that the clients of a farm share; None if this process measures by itself."""
        fleet, candidates = self._program.tuning.fleet, len(self._configurations)
        if self._choice is None and fleet is not None and candidates <= MOST_CANDIDATES:
            kernels, _, values = self._tuning_key
            tuned = TuningSubject(tuning_digest(kernels, values), timer.device(), candidates)
            self._choice = FleetChoice(fleet(), tuned, self._name)
        return self._choice

    def _measured(
        self,
        timer: LaunchTimer,
        choice: FleetChoice | None,
        given: Sequence[torch.Tensor],
        originals: Mapping[int, torch.Tensor],
        stream: int,
    ) -> int:
        def restore() -> None:
            for number, original in originals.items():
                _flat(given[number]).copy_(_flat(original))

        def measure() -> int:
            launches = [self._launch(found, given, stream) for found in self._configurations]
            limit = TimeLimit(self._program.tuning.limit_s)
            found = fastest(launches, restore, timer, self._name, limit)
            if choice is not None:
                choice.report(found.times_ms)
            return found.winner

        winner = WINNERS.find_or_measure(self._tuning_key, measure)
        restore()
        return winner

    def _launch(
        self, configuration: _Configuration, given: Sequence[torch.Tensor], stream: int
    ) -> _Launch:
        """A launch on these tensors; it may be repeated."""
        addresses = [tensor.data_ptr() for tensor in given]
        variant = _chosen(configuration.variants, addresses)
        scratch = self._scratch(variant, configuration.programs)
        if scratch is not None:
            addresses.append(scratch.data_ptr())
        table = (ctypes.c_uint64 * len(addresses))(*addresses)
        launch = variant.kernel(ctypes.addressof(table), stream)
        return _Launch(launch, self._loader, self._name, (table, scratch))

    def _scratch(self, variant: GuardedKernel, programs: int) -> torch.Tensor | None:
        """The kernel's own memory; torch may reuse it for later work of the stream."""
        size_bytes = variant.scratch_bytes * programs
        if not size_bytes:
            return None
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)


def _chosen(variants: Sequence[GuardedKernel], addresses: Sequence[int]) -> GuardedKernel:
    return next(
        variant
        for variant in variants
        if all(address_holds(atom, addresses[int(atom.name)]) for atom in variant.guard)
    )


def _checked(
    variants: Sequence[tuple[int, Sequence[LoadedVariant]]], count: int
) -> Sequence[tuple[int, Sequence[LoadedVariant]]]:
    numbers = [number for number, _ in variants]
    if not numbers or max(numbers) >= count:
        raise InvalidGraphError(
            f"plan: configurations {numbers} of a user kernel that has {count}; expected some of"
            " its own"
        )
    return variants


def _fresh(tensor: TensorType, sizes: Mapping[str, int]) -> _Fresh:
    return _Fresh(*sized_layout(tensor, sizes), dtype_to_torch(tensor.dtype))


def span_elems(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last; 0 if there are none."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def sized_layout(
    tensor: TensorType, sizes: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides (in elements) of a type for these values of its symbols."""
    strides = contiguous_strides(tensor.shape) if tensor.strides is None else tensor.strides
    return (
        tuple(extent.evaluate(sizes) for extent in tensor.shape),
        tuple(stride.evaluate(sizes) for stride in strides),
    )


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own with the same strides, also if elements share an address."""
    shape, strides = tensor.shape, tensor.stride()
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return _flat(tensor).clone().as_strided(shape, strides)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements from the first to the last, in the order of their addresses."""
    return tensor.as_strided((span_elems(tensor.shape, tensor.stride()),), (1,))


def _grids(node: Node, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The grid of each configuration."""
    stated = node.attr("grids")
    assert isinstance(stated, tuple)  # checked with the node
    if not stated:
        raise InvalidGraphError("a user kernel without a grid; expected one to launch it")
    grids = []
    for grid in stated:
        assert isinstance(grid, tuple)  # checked with the node
        extents = [evaluated_size(extent, sizes) for extent in grid]
        grids.append((*extents, *(1,) * (GRID_SIZES - len(extents))))
    return grids
