"""Functions of tile programs: what they take, and what they refuse before a launch."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from kernelfarm.client.tilelang.launch_grid import grid_of
from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import warps_of
from kernelfarm.errors import TileProgramError
from tests.support.tile_programs import program_text


def test_a_tensor_of_another_shape_type_or_layout_is_refused() -> None:
    add = kernelfarm.tilelang_function(program_text("matrix_add"), outputs=[2])
    right = torch.zeros(100, 70)

    for wrong in (torch.zeros(70, 100), right.half(), torch.zeros(70, 100).t()):
        with pytest.raises(TileProgramError, match="parameter Y: a tensor of"):
            add(right, wrong)
    with pytest.raises(TileProgramError, match="add takes 2 tensors, not 3"):
        add(right, right, right)


def test_outputs_are_positions_of_parameters() -> None:
    with pytest.raises(TileProgramError, match="a program of 3 parameters"):
        kernelfarm.tilelang_function(program_text("matrix_add"), outputs=[3])


def test_a_size_is_read_from_the_tensors_and_must_agree() -> None:
    rows = kernelfarm.tilelang_function(program_text("matmul_varying"))
    a, b = torch.zeros(77, 64).half(), torch.zeros(64, 48).half()

    with pytest.raises(TileProgramError, match=r"parameter out: .* expected torch.float32, \[77"):
        rows(a, b, torch.zeros(76, 48))


def test_a_launch_has_the_blocks_of_its_sizes() -> None:
    assert grid_of(read_program(program_text("matmul")), {}) == (3, 4, 1)
    varying = read_program(program_text("matmul_varying"))
    assert grid_of(varying, {"m": 77}) == (3, 1, 1)
    with pytest.raises(TileProgramError, match="the size m has no value"):
        grid_of(varying, {})


def test_threads_become_a_power_of_two_of_warps() -> None:
    program = read_program(program_text("mixed"))

    assert program.threads == 96
    assert [warps_of(program, warp_size) for warp_size in (32, 64)] == [2, 1]


def test_a_function_needs_an_argument() -> None:
    with pytest.raises(TileProgramError, match="all 3 parameters of add are outputs"):
        kernelfarm.tilelang_function(program_text("matrix_add"), outputs=[0, 1, 2])
