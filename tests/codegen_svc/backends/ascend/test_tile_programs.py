"""Tile programs of TileLang for Ascend: their Linalg, run on this CPU, computes what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen_svc.backends.ascend.backend import BACKEND
from kernelfarm.client.tilelang.launch_grid import grid_of
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import tile_kernel
from kernelfarm.errors import KernelRejectedError
from kernelfarm.targets import target_facts
from tests.support.linalg_cpu import TOOLS, run_user_linalg
from tests.support.third_party import need
from tests.support.tile_programs import CASES, program_text

pytestmark = pytest.mark.usefixtures("adapter")

TARGET = target_facts("ascend:910b")
# Its tile is stored with a stride of zero along one axis.
REFUSED = "mixed"


# slow: every second program; MLIR's tools and clang take a second for each.
@pytest.mark.third_party
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number % 2 else [])
        for number, name in enumerate(name for name in CASES if name != REFUSED)
    ],
)
def test_a_program_computes_what_float64_gives(name: str, tmp_path: Path) -> None:
    need(*TOOLS)
    case, program = CASES[name], read_program(program_text(name))
    kernel, sizes, buffers = tile_kernel(program, None), case.sizes or {}, list(case.buffers())
    (built,) = BACKEND.build_user_kernel(kernel, TARGET)

    run_user_linalg(built, kernel, (*buffers, *sizes.values()), grid_of(program, sizes), tmp_path)

    for position, expected in case.expected(tuple(case.buffers())).items():
        found = buffers[position].astype(np.float64)
        np.testing.assert_allclose(found, expected, atol=case.tolerance * np.abs(expected).max())


def test_a_program_that_the_adapter_refuses_is_refused() -> None:
    kernel = tile_kernel(read_program(program_text(REFUSED)), None)
    with pytest.raises(KernelRejectedError, match=r"triton-adapter-opt .* refuses kernel mixed_"):
        BACKEND.build_user_kernel(kernel, TARGET)
