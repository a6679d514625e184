"""Real inputs compiled for every target through a farm, with the contents of their stages.

The default run compiles the small inputs for every target, and whole models for one target of each
vendor. The slow run compiles every input for every target, as `make demo` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import kernelfarm
from examples.real_inputs import WHOLE_GRAPHS
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram, StageContent
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import all_targets

TIMEOUT_S = 240.0
CPU_TARGETS = tuple(t for t, facts in all_targets().items() if facts.vendor == "cpu")
OTHER_TARGETS = tuple(t for t, facts in all_targets().items() if facts.vendor != "cpu")
SMALL_INPUTS = ("reference", "h")
ONE_OF_EACH_VENDOR = ("ascend:910b", "cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942")


@dataclass(frozen=True)
class Binary:
    """One variant of one kernel; `contents` are its stages by name."""

    kernel: str
    artifact: CompiledArtifact
    contents: dict[str, bytes]

    @property
    def loaded(self) -> bytes:
        """The binary that a device would load."""
        return self.contents[self.artifact.binary.name]


@dataclass(frozen=True)
class Everything:
    """Programs of a farm, by input and target."""

    endpoint: str
    programs: dict[tuple[str, str], CompiledProgram]

    def binaries(self, name: str, target: str) -> Iterator[Binary]:
        """Every variant of every kernel of an input."""
        program = self.programs[name, target]
        blobs = self._read(s for variants in program.kernels for a in variants for s in a.stages)
        for kernel, variants in zip(program.plan.kernel_names, program.kernels, strict=True):
            for artifact in variants:
                contents = {stage.name: blobs[stage.sha256] for stage in artifact.stages}
                yield Binary(kernel, artifact, contents)

    def captured(self, name: str, target: str) -> Graph:
        """An input's captured graph, from the farm's `aten` stage."""
        (stage,) = (s for s in self.programs[name, target].stages if s.name == "aten")
        return parse_graph(self._read([stage])[stage.sha256].decode())

    def _read(self, stages: Iterable[StageContent]) -> dict[bytes, bytes]:
        with connect(self.endpoint) as client:
            return client.read_blobs(sorted({stage.sha256 for stage in stages}))


def is_slow(name: str, target: str) -> bool:
    """True if only the slow run compiles an input for a target."""
    return name not in SMALL_INPUTS and target not in ONE_OF_EACH_VENDOR


def pairs_of(vendor: str) -> list[Any]:
    """Pairs of an input and a target of a vendor, as parameters of a test."""
    return [
        pytest.param(name, target, marks=[pytest.mark.slow] if is_slow(name, target) else [])
        for name in WHOLE_GRAPHS
        for target, facts in all_targets().items()
        if facts.vendor == vendor
    ]


def compile_everything(endpoint: str, *, is_whole: bool = False) -> Everything:
    """Compiles inputs in float32 for CPUs and in float16 for accelerators; with `is_whole`, all."""
    programs = {}
    for name, make in WHOLE_GRAPHS.items():
        for source, targets in ((make(), CPU_TARGETS), (make().half(), OTHER_TARGETS)):
            reference = [target for target in targets if is_whole or not is_slow(name, target)]
            compiled = kernelfarm.compile(
                source.model, source.args, targets=reference, endpoint=endpoint, timeout_s=TIMEOUT_S
            )
            programs.update({(name, t): program for t, program in compiled.programs.items()})
    return Everything(endpoint, programs)
