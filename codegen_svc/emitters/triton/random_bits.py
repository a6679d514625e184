"""Random bits as Triton source: Philox 4x32-10, see `kernelfarm.ir.philox`.

Triton's own `tl.randint4x` gives the same words. This one does not change with Triton's version,
and computes both halves of a product by one multiplication in 64 bits, which every vendor's
toolchain lowers.
"""

from __future__ import annotations

from kernelfarm.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD_BITS


def kf_philox_text() -> str:
    """The text of a function of a seed and a position (i64): words 0 (low half) and 1 as i64."""
    return f"""
def kf_philox(seed, position):
    # Philox 4x32-10: the seed is the key, the position the counter
    k0, k1 = seed.to(tl.uint32), (seed >> {WORD_BITS}).to(tl.uint32)
    c0, c1 = position.to(tl.uint32), (position >> {WORD_BITS}).to(tl.uint32)
    c2, c3 = c0 ^ c0, c0 ^ c0
    for _ in tl.static_range({ROUNDS}):
        first = c0.to(tl.uint64) * {MULTIPLIERS[0]:#x}
        second = c2.to(tl.uint64) * {MULTIPLIERS[1]:#x}
        c0 = (second >> {WORD_BITS}).to(tl.uint32) ^ c1 ^ k0
        c2 = (first >> {WORD_BITS}).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = second.to(tl.uint32), first.to(tl.uint32)
        k0, k1 = k0 + {KEY_STEPS[0]:#x}, k1 + {KEY_STEPS[1]:#x}
    return ((c1.to(tl.uint64) << {WORD_BITS}) | c0.to(tl.uint64)).to(tl.int64)
"""
