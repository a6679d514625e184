"""Random bits as LLVM instructions: Philox 4x32-10, see `kernelfarm.ir.philox`.

Words are 64-bit values with 32 significant bits, so that a product holds both of its halves. Loops
over neighbouring positions become vector code with one multiplication per product (`vpmuludq`).
"""

from __future__ import annotations

from codegen_svc.emitters.llvm.text import I64, FunctionText, Value, integer
from kernelfarm.dtypes import DType
from kernelfarm.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD_BITS


def philox(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    """Words 0 (low half) and 1 of a key and a counter, as i64."""
    k0, k1 = _words(fn, v[0])
    c0, c1 = _words(fn, v[1])
    c2 = c3 = integer(0, I64)
    for number in range(ROUNDS):
        if number:
            k0, k1 = _stepped(fn, k0, KEY_STEPS[0]), _stepped(fn, k1, KEY_STEPS[1])
        first = fn.op("mul", c0, integer(MULTIPLIERS[0], I64))
        second = fn.op("mul", c2, integer(MULTIPLIERS[1], I64))
        c0 = _mixed(fn, second, c1, k0)
        c2 = _mixed(fn, first, c3, k1)
        c1, c3 = _low(fn, second), _low(fn, first)
    high = fn.op("shl", c1, integer(WORD_BITS, I64))
    return fn.op("or", high, c0)


def _words(fn: FunctionText, bits: Value) -> tuple[Value, Value]:
    return _low(fn, bits), _high(fn, bits)


def _low(fn: FunctionText, bits: Value) -> Value:
    return fn.op("and", bits, integer((1 << WORD_BITS) - 1, I64))


def _high(fn: FunctionText, bits: Value) -> Value:
    return fn.op("lshr", bits, integer(WORD_BITS, I64))


def _mixed(fn: FunctionText, product: Value, word: Value, key: Value) -> Value:
    return fn.op("xor", fn.op("xor", _high(fn, product), word), key)


def _stepped(fn: FunctionText, key: Value, step: int) -> Value:
    return _low(fn, fn.op("add", key, integer(step, I64)))
