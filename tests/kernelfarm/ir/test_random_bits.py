"""Philox 4x32-10 in the interpreter: its authors' vectors, and statistics of its bits."""

from __future__ import annotations

import numpy as np
import pytest

from kernelfarm.ir.interpret.random_bits import philox, philox_words

# Source: known-answer tests of the authors' library Random123 (kat_vectors, philox4x32, 10 rounds):
# counter, key, result.
VECTORS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
COUNT = 1 << 16
SIGMAS = 5
"""A fixed seed either passes or not; by chance one test in two million would not."""


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_the_authors_vectors(counter: list[int], key: list[int], words: list[int]) -> None:
    found = philox_words(tuple(map(np.uint64, key)), tuple(map(np.uint64, counter)))
    assert [int(word) for word in found] == words


def test_bits_are_the_first_two_words_low_half_first() -> None:
    bits = philox(np.array(0, np.int64), np.array(0, np.int64))
    assert int(bits) & (2**64 - 1) == 0xE169C58D6627E8D5


def test_negative_seeds_and_positions_are_taken_as_64_bits() -> None:
    minus = np.array(-1, np.int64)
    key, counter = (np.uint64(0xFFFFFFFF),) * 2, (np.uint64(0xFFFFFFFF),) * 2
    words = philox_words(key, (*counter, np.uint64(0), np.uint64(0)))
    assert int(philox(minus, minus)) & (2**64 - 1) == int(words[1]) << 32 | int(words[0])


def ones(bits: np.ndarray) -> np.ndarray:
    """How often each of the 64 bits is set."""
    positions = np.arange(64, dtype=np.uint64)
    return ((bits.astype(np.uint64)[:, None] >> positions) & np.uint64(1)).sum(0)


@pytest.mark.parametrize("seed", [0, 1, -(1 << 63), 0x5DEECE66D])
def test_every_bit_is_set_half_of_the_time(seed: int) -> None:
    bits = philox(np.array(seed, np.int64), np.arange(COUNT))
    assert np.abs(ones(bits) - COUNT / 2).max() < SIGMAS * np.sqrt(COUNT) / 2


def test_bytes_are_equally_frequent() -> None:
    words = philox(np.array(7, np.int64), np.arange(COUNT)).view(np.uint8)
    seen = np.bincount(words, minlength=256)
    expected = words.size / 256
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255)


@pytest.mark.parametrize("distance", [1, 2, 32, 1024])
def test_neighbours_share_no_bits_beyond_chance(distance: int) -> None:
    bits = philox(np.array(3, np.int64), np.arange(COUNT + distance))
    different = ones(bits[:-distance] ^ bits[distance:])
    assert np.abs(different - COUNT / 2).max() < SIGMAS * np.sqrt(COUNT) / 2


def test_neighbouring_seeds_share_no_bits_beyond_chance() -> None:
    first, second = (philox(np.array(seed, np.int64), np.arange(COUNT)) for seed in (41, 42))
    assert np.abs(ones(first ^ second) - COUNT / 2).max() < SIGMAS * np.sqrt(COUNT) / 2
