"""The constants of Philox 4x32-10, for the interpreter and all emitters.

One round, on a counter of four words c and a key of two words k, all of 32 bits:

    c0, c1, c2, c3 = high(M1 * c2) ^ c1 ^ k0, low(M1 * c2), high(M0 * c0) ^ c3 ^ k1, low(M0 * c0)

after which the key steps. The prim `philox(seed, position)` takes the seed as key, the position as
words 0 and 1 of the counter (words 2 and 3 are 0), and gives words 0 and 1 of the result.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011.
"""

from __future__ import annotations

from typing import Final

ROUNDS: Final = 10
"""Enough, with a margin, for all statistical tests that the authors ran."""
WORD_BITS: Final = 32
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
"""M0 and M1."""
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
"""Added to the key's words after each round: the golden ratio, and the root of 3 less 1."""
