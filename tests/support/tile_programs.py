"""Tile programs as TileLang 0.1.15 prints them, with inputs and with what they must compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

_FOLDER: Final = Path(__file__).parents[1] / "kernelfarm" / "client" / "tilelang" / "programs"


@dataclass(frozen=True)
class TileCase:
    """A program's file, its buffers, the values of its sizes, and what its results must be.

    `expected` takes the buffers before the launch, and gives the result for each output's position
    in float64. `tolerance` is relative to the largest result: that of the stored type.
    """

    buffers: Callable[[], Sequence[Array]]
    expected: Callable[[Sequence[Array]], Mapping[int, Array]]
    tolerance: float
    sizes: Mapping[str, int] | None = None


def program_text(name: str) -> str:
    """The text of a program."""
    return (_FOLDER / f"{name}.txt").read_text()


def _normal(*shape: int, dtype: Any = np.float32) -> Array:
    random = np.random.default_rng(sum(shape))
    return np.asarray(random.standard_normal(shape).astype(dtype))


def _f64(array: Array) -> Array:
    return array.astype(np.float64)


def _matmul(buffers: Sequence[Array]) -> Mapping[int, Array]:
    a, b, bias, _ = map(_f64, buffers)
    return {3: np.maximum(a @ b + bias, 0)}


def _rms_norm(buffers: Sequence[Array]) -> Mapping[int, Array]:
    x, weight, _ = map(_f64, buffers)
    return {2: x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * weight}


def _softmax(buffers: Sequence[Array]) -> Mapping[int, Array]:
    powers = np.exp(_f64(buffers[0]))
    return {1: powers / powers.sum(axis=1, keepdims=True)}


def attention_of(buffers: Sequence[Array]) -> Mapping[int, Array]:
    """Causal attention in float64, at the position of its output."""
    q, k, v, _ = map(_f64, buffers)
    length, width = q.shape[-2:]
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(width)
    scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return {3: weights / weights.sum(axis=-1, keepdims=True) @ v}


def _mixed(buffers: Sequence[Array]) -> Mapping[int, Array]:
    """What the program computes; its last block of 16 rows has 2 of the 50, the others are 0."""
    x = np.zeros((64, 24))
    x[:50] = _f64(buffers[0])
    numbers = np.zeros(64)
    numbers[:50] = buffers[1]
    row, column = np.indices(x.shape)
    takes_number = ((row % 16 + column) % 3 == 0) & (row < 50)
    tile = np.where(takes_number, x + numbers[:, None], np.abs(x) + np.floor(x * 2))
    most = np.abs(tile).max(axis=1)
    turned = (tile * (column // 2)).T + most
    ones = np.where(row >= 32, 1.0, tile)  # the blocks after the second are filled with ones
    return {
        2: turned[:, :50],
        3: np.cumsum(ones, axis=1)[:50],
        4: tile[:50].sum(axis=0),
    }


CASES: Final[Mapping[str, TileCase]] = {
    "matrix_add": TileCase(
        lambda: [_normal(100, 70), _normal(100, 70) + 1, np.zeros((100, 70), np.float32)],
        lambda buffers: {2: _f64(buffers[0]) + _f64(buffers[1])},
        1e-7,
    ),
    "matmul": TileCase(
        lambda: [
            _normal(100, 80, dtype=np.float16),
            _normal(80, 96, dtype=np.float16),
            _normal(96, dtype=np.float16),
            np.zeros((100, 96), np.float16),
        ],
        _matmul,
        1e-3,
    ),
    "matmul_varying": TileCase(
        lambda: [
            _normal(77, 64, dtype=np.float16),
            _normal(64, 48, dtype=np.float16),
            np.zeros((77, 48), np.float32),
        ],
        lambda buffers: {2: _f64(buffers[0]) @ _f64(buffers[1])},
        1e-6,
        {"m": 77},
    ),
    "rms_norm": TileCase(
        lambda: [
            _normal(37, 200, dtype=ml_dtypes.bfloat16),
            _normal(200),
            np.zeros((37, 200), ml_dtypes.bfloat16),
        ],
        _rms_norm,
        8e-3,  # Triton's interpreter cuts bits off where a GPU rounds
    ),
    "softmax": TileCase(lambda: [_normal(9, 300), np.zeros((9, 300), np.float32)], _softmax, 1e-6),
    "attention": TileCase(
        lambda: [
            *(_normal(2, 2, 128, 32, dtype=np.float16) for _ in range(3)),
            np.zeros((2, 2, 128, 32), np.float16),
        ],
        attention_of,
        2e-3,
    ),
    "split_products": TileCase(
        lambda: [_normal(64, 128), _normal(48, 128), np.zeros((64, 48), np.float32)],
        lambda buffers: {2: _f64(buffers[0]) @ _f64(buffers[1]).T},
        1e-6,
    ),
    "mixed": TileCase(
        lambda: [
            _normal(50, 24),
            np.arange(50, dtype=np.int32),
            np.zeros((24, 50), np.float32),
            np.zeros((50, 24), np.float32),
            np.zeros(24, np.float32),
        ],
        _mixed,
        1e-6,
    ),
}
"""The programs by the names of their files."""
