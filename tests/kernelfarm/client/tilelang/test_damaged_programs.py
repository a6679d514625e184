"""Damaged texts of tile programs: each is refused or read, and nothing else happens."""

from __future__ import annotations

import random

import pytest

from kernelfarm.client.tilelang.read_program import read_program
from kernelfarm.client.tilelang.user_kernel import tile_kernel
from kernelfarm.errors import TileProgramError, UserKernelError
from tests.support.tile_programs import CASES, program_text

_PIECES = ("", "0", "-1", "i", "T.region", "T.copy", "(", ")", "[0]", ", 1", "* 2", "// 2", "None")


def _damaged(text: str, seed: int) -> str:
    """The text with one to three words or calls replaced, removed or repeated."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        begin = chance.randrange(len(text))
        end = min(begin + chance.choice((1, 2, 5, 20)), len(text))
        text = text[:begin] + chance.choice((*_PIECES, text[begin:end] * 2)) + text[end:]
    return text


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_text_is_refused_or_read(name: str) -> None:
    text, refused = program_text(name), 0
    for seed in range(250):
        try:
            tile_kernel(read_program(_damaged(text, seed)), 4)
        except (TileProgramError, UserKernelError) as error:
            refused += 1
            assert str(error)

    assert 50 < refused <= 250


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_an_expression_that_is_nested_deeply_is_refused(depth: int) -> None:
    text = program_text("matrix_add").replace("by * 16", f"by * {'-' * depth}16", 1)

    with pytest.raises(TileProgramError):
        tile_kernel(read_program(text), 4)
