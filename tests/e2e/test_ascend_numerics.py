"""Whole models by the Linalg text of the farm's Ascend stubs, executed on this CPU.

This verifies plan, source and adapter. A stub has no code for an Ascend chip.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.real_inputs import WHOLE_GRAPHS
from kernelfarm.client.capture.exported import export_model
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.program_ir import Launch
from kernelfarm.ir.text import parse_kernel
from tests.e2e.compiled_inputs import Everything
from tests.e2e.linalg_loader import LinalgLoader
from tests.support.accuracy import assert_as_good_as_eager
from tests.support.linalg_cpu import TOOLS
from tests.support.third_party import need

TARGET = "ascend:910b"

pytestmark = pytest.mark.third_party


# slow: every second graph; to translate and run one takes seconds.
GRAPHS = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 2 else [])
    for number, name in enumerate(WHOLE_GRAPHS)
]


@pytest.mark.parametrize("name", GRAPHS)
def test_linalg_of_a_real_input_computes_what_eager_does(
    name: str, everything: Everything, tmp_path: Path
) -> None:
    need(*TOOLS)
    binaries = list(everything.binaries(name, TARGET))
    if not all(binary.artifact.is_stub for binary in binaries):
        pytest.skip("this farm makes real objects: bishengir-compile is installed")
    plan = everything.programs[name, TARGET].plan
    kernels = {b.kernel: parse_kernel(b.contents["kernel"].decode()) for b in binaries}
    loader = LinalgLoader(kernels, tmp_path)
    general = {b.kernel: b for b in binaries if not b.artifact.guard}
    loaded = [
        (LoadedVariant((), loader.load(general[k].loaded, general[k].artifact.launch)),)
        for k in plan.kernel_names
    ]
    source = WHOLE_GRAPHS[name]().half()
    exported = export_model(source.model, source.args)
    runner = PlanRunner(BoundProgram(plan, tuple(loaded), exported.captured, loader))
    with torch.no_grad():
        flat = exported.flat_args(source.args, {})
        result = exported.results(runner(flat), flat)
    assert len(loader.launches) == sum(isinstance(step, Launch) for step in plan.steps)
    assert_as_good_as_eager(result, source.model, *source.args)
