"""Property: every kernel that the optimizer makes runs compiled as it is interpreted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernelfarm.ir.interpret import programs, run_kernel, run_program
from kernelfarm.ir.loop_ir import Access, Kernel
from kernelfarm.ir.text import print_kernel
from kernelfarm.targets import target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run
from tests.support.examples import examples
from tests.support.random_graphs import Case, cases, run_extern

pytestmark = pytest.mark.usefixtures("each_cpu_target")

TARGET = target_facts("cpu:x86-64-v3")
NO_DEADLINE = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)


def _run_both(kernel: Kernel, buffers: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    """Runs the interpreter, and the compiled kernel with one and with three threads beside it."""
    compiled = [{n: np.ascontiguousarray(a).copy() for n, a in buffers.items()} for _ in range(2)]
    run_kernel(kernel, buffers, sizes)
    for arrays, threads in zip(compiled, (1, 3), strict=True):
        assert run(kernel, arrays, dict(sizes), threads=threads) == 0
        for param in kernel.params:
            if param.access is not Access.READ:
                _check(kernel, param.name, arrays[param.name], buffers[param.name])


def _check(kernel: Kernel, name: str, got: np.ndarray, reference: np.ndarray) -> None:
    narrow = got.dtype.itemsize < 4 and got.dtype.kind not in "iub"
    # Sums run in another order, elementary functions are other ones; narrow floats may differ
    # by one rounding of the result.
    rtol = 2e-3 if narrow else 1e-5
    np.testing.assert_allclose(
        got.astype(np.float64),
        reference.astype(np.float64),
        rtol=rtol,
        atol=1e-5,
        err_msg=f"{name} of\n{print_kernel(kernel)}",
    )


def _check_case(case: Case) -> None:
    program = optimize(case.graph, TARGET).program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "run_kernel", _run_both)
        run_program(program, case.inputs, run_extern)


@given(case=cases())
@settings(NO_DEADLINE, max_examples=examples(40))
def test_static_kernels_run_compiled_as_interpreted(case: Case) -> None:
    _check_case(case)


@given(case=cases(symbolic=True))
@settings(NO_DEADLINE, max_examples=examples(40))
def test_symbolic_kernels_run_compiled_as_interpreted(case: Case) -> None:
    _check_case(case)


@pytest.mark.slow
@given(case=cases(symbolic=True, max_nodes=30))
@settings(NO_DEADLINE, max_examples=600)
def test_many_kernels_run_compiled_as_interpreted(case: Case) -> None:
    _check_case(case)
