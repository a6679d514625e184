"""Products built for an Ascend chip: the artifact, its tiling, its launch in the interpreter."""

from __future__ import annotations

import json
from typing import Any

from codegen_svc.backends.ascend.backend import BACKEND
from codegen_svc.backends.triton_gpu import scalar_rules
from codegen_svc.emitters.triton.cube_tiling import cube_tiling
from codegen_svc.emitters.triton.source import emit_triton
from codegen_svc.emitters.triton.tiling import program_count
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import target_facts
from tests.support.triton_cases import Array
from tests.support.triton_interpreter import Case

TARGET = target_facts("ascend:910b")


def built_of(kernel: Kernel) -> BuiltKernel:
    """The general variant of the kernel."""
    return BACKEND.build(kernel, TARGET)[-1]


def tiling_of(built: BuiltKernel) -> dict[str, Any]:
    """What the artifact states of cores, tiles and buffers."""
    facts: dict[str, Any] = json.loads(dict(built.launch.extras)["tiling"])
    return facts


def interpreted_case(kernel: Kernel, given: dict[str, Array]) -> Case:
    """The kernel's launch with the text and the tiling of the chip."""
    found = cube_tiling(kernel, TARGET, 32)
    assert found is not None
    source = emit_triton(kernel, found.tiling, scalar_rules(TARGET, kernel))
    arrays = tuple(given[p.name] for p in kernel.params)
    return Case(source, program_count(kernel, found.tiling).as_int(), arrays, ())
