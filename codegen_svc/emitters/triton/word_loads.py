"""Bytes that a kernel reads beside each other, loaded as one word of 32 bits.

Weights of 4 bits are stored in bytes. A lane that computes with four neighbouring bytes gets them
from one register by shifts; four loads, or a conversion of each byte, take longer. Words need
buffers that begin at multiples of four bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Kernel, Load

WORD_BYTES = 4
WORD_LOAD = "_word = tl.load("
_BYTES = (DType.U8, DType.I8)


@dataclass(frozen=True, slots=True)
class ByteOfWord:
    """A loaded byte: `byte` of the word at position `index` of the buffer as words.

    `first` is the number of the load of the word's first byte, after which the word is named.
    """

    first: int
    index: Expr
    byte: int


def once_each(lines: Iterable[str]) -> list[str]:
    """The lines without later loads of words that were loaded."""
    found: list[str] = []
    for line in lines:
        if not (WORD_LOAD in line and line in found):
            found.append(line)
    return found


def bytes_of_words(kernel: Kernel) -> dict[int, ByteOfWord]:
    """The loads of bytes whose word is read as a whole, by number."""
    words: dict[tuple[str, Expr], dict[int, int]] = defaultdict(dict)
    for number, load in enumerate(kernel.body):
        if not isinstance(load, Load) or load.mask is not None:
            continue
        byte = load.index % WORD_BYTES
        if kernel.param(load.param).dtype in _BYTES and byte.is_constant:
            start = load.index - byte
            words[load.param, start].setdefault(byte.constant, number)
    return {
        number: ByteOfWord(numbers[0], start // WORD_BYTES, byte)
        for (_, start), numbers in words.items()
        if len(numbers) == WORD_BYTES
        for byte, number in numbers.items()
    }
