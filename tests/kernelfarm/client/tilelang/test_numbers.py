"""Tile programs compute what they say: their Triton source, run by Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_svc.emitters.triton.source import TritonSource
from kernelfarm.client.tilelang.launch_grid import grid_of
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.write_triton import write_triton
from tests.support.tile_programs import CASES, program_text
from tests.support.triton_interpreter import Case, run_interpreted

_HEADER = (
    "import triton\nimport triton.language as tl\n"
    "from triton.language.extra import libdevice\n\n\n@triton.jit\n"
)


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_what_float64_gives(name: str) -> None:
    case, program = CASES[name], read_program(program_text(name))
    sizes = case.sizes or {}
    buffers = tuple(case.buffers())
    text = f"{_HEADER}{write_triton(program)}\n"
    source = TritonSource(program.name, text, (), (), ())
    launch = Case(source, grid_of(program, sizes), buffers, tuple(sizes.values()))

    (results,) = run_interpreted([launch])

    assert not isinstance(results, str), results
    for position, expected in case.expected(buffers).items():
        found = results[position].astype(np.float64)
        np.testing.assert_allclose(found, expected, atol=case.tolerance * np.abs(expected).max())
