"""Random bits by Philox 4x32-10, the counter-based generator, on NumPy arrays.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; its test vectors are in `tests/kernelfarm/ir/test_random_bits.py`.
"""

from __future__ import annotations

import numpy as np

from kernelfarm.ir.interpret.arrays import Array
from kernelfarm.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD_BITS

_MASK = np.uint64((1 << WORD_BITS) - 1)
_WORD_BITS = np.uint64(WORD_BITS)


def philox(seed: Array, position: Array) -> Array:
    """64 bits (i64) for a key and a counter (i64): words 0 (low half) and 1 of four."""
    first, second = (_words(seed), _words(position))
    nothing = np.zeros((), np.uint64)
    words = philox_words(first, (*second, nothing, nothing))
    return np.asarray((words[1] << _WORD_BITS) | words[0]).astype(np.int64)


def philox_words(
    key: tuple[Array, Array], counter: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """All four words (32 bits in u64) for a key of two and a counter of four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c2 = (second >> _WORD_BITS) ^ c1 ^ k0, (first >> _WORD_BITS) ^ c3 ^ k1
        c1, c3 = second & _MASK, first & _MASK
        k0, k1 = (k0 + np.uint64(KEY_STEPS[0])) & _MASK, (k1 + np.uint64(KEY_STEPS[1])) & _MASK
    return c0, c1, c2, c3


def _words(bits: Array) -> tuple[Array, Array]:
    wide = np.asarray(bits).astype(np.uint64)
    return wide & _MASK, wide >> _WORD_BITS
