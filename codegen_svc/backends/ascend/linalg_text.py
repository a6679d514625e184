"""What the passes over Linalg text need to know of it: loops, and blocks that are copied into it.

The text is what the adapter prints: one operation in a line, regions indented by two columns, and
names of values that are unique where they are visible. A block is

    %alloc = memref.alloc() : memref<64x32xf16>
    memref.copy %from, %alloc_or_a_part_of_it : ...
    %block = bufferization.to_tensor %alloc restrict writable : memref<64x32xf16>
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernelfarm.errors import InternalError

_NAME = r"%[\w$.-]+"
_NAMES = re.compile(_NAME)
_LOOP = re.compile(rf"^\s*(?:{_NAME}(?::\d+)? = )?scf\.(?:for|while) .*\{{$")
_ALLOC = re.compile(rf"^\s*({_NAME}) = memref\.alloc\(\) : ")
_PART = re.compile(rf"^\s*({_NAME}) = memref\.subview ({_NAME})\[")
_COPY = re.compile(rf"^\s*memref\.copy {_NAME}, ({_NAME}) : ")
_BLOCK = re.compile(rf"^\s*({_NAME}) = bufferization\.to_tensor ({_NAME}) .*: memref<([^,>]*)>$")
_PRODUCT = re.compile(rf"linalg\.(?:batch_)?matmul .*ins\((?P<operands>{_NAME}, {_NAME}) :")
_TRANSPOSE = re.compile(rf"^\s*({_NAME}) = linalg\.transpose ins\(({_NAME}) :")
_ELEMENT_BITS = re.compile(r"\D+(\d+)")


@dataclass(frozen=True, slots=True)
class Loop:
    """The first and the last line of an `scf.for` or `scf.while`."""

    first: int
    last: int

    def has(self, line: int) -> bool:
        """True for a line in the loop."""
        return self.first < line < self.last


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block that is copied from memory, by the name and the type of its tensor.

    `line` makes the tensor. `is_operand`: nothing but matrix products uses it.
    """

    name: str
    type: str
    size_bytes: int
    line: int
    is_operand: bool


def indent_of(line: str) -> int:
    """The columns before a line's text."""
    return len(line) - len(line.lstrip())


def end_of(lines: Sequence[str], first: int) -> int:
    """The line that closes the region which the line `first` opens.

    Raises:
        InternalError: no line does.
    """
    indent = indent_of(lines[first])
    for number in range(first + 1, len(lines)):
        line = lines[number]
        if indent_of(line) == indent and line.lstrip().startswith("}") and not line.endswith("{"):
            return number
    raise InternalError(f"line {first} of the Linalg text opens a region that nothing closes")


def loops_of(lines: Sequence[str]) -> tuple[Loop, ...]:
    """All loops, an outer one before those in it."""
    return tuple(
        Loop(number, end_of(lines, number))
        for number, line in enumerate(lines)
        if _LOOP.match(line)
    )


def loaded_blocks(lines: Sequence[str]) -> tuple[LoadedBlock, ...]:
    """All blocks that are copied from memory as a whole or in part, in order."""
    uses, ends = _uses(lines), _region_ends(lines)
    whole: dict[str, str] = {}
    copied: set[str] = set()
    found = []
    for number, line in enumerate(lines):
        if made := _ALLOC.match(line):
            whole[made[1]] = made[1]
            copied.discard(made[1])
        elif part := _PART.match(line):
            whole[part[1]] = whole.get(part[2], "")
        elif copy := _COPY.match(line):
            copied.add(whole.get(copy[1], ""))
        elif (block := _BLOCK.match(line)) and block[2] in copied:
            visible = range(number + 1, ends[number])
            is_operand = _is_operand(lines, visible, uses, block[1])
            kind = f"tensor<{block[3]}>"
            found.append(LoadedBlock(block[1], kind, _size_bytes(block[3]), number, is_operand))
    return tuple(found)


def _uses(lines: Sequence[str]) -> dict[str, list[int]]:
    """The lines that name a value, in order; other regions may have another value of its name."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        for name in dict.fromkeys(_NAMES.findall(line)):
            found.setdefault(name, []).append(number)
    return found


def _region_ends(lines: Sequence[str]) -> list[int]:
    """For each line the next one with a smaller indent, at which its region has ended."""
    ends = [len(lines)] * len(lines)
    pending: list[int] = []
    for number, line in enumerate(lines):
        while pending and indent_of(line) < indent_of(lines[pending[-1]]):
            ends[pending.pop()] = number
        pending.append(number)
    return ends


def _is_operand(
    lines: Sequence[str], visible: range, uses: Mapping[str, Sequence[int]], name: str
) -> bool:
    """True if a tensor is used, and only as an operand of products, transposed or as it is."""
    used = [
        line
        for line in (lines[number] for number in uses[name] if number in visible)
        if "annotation.mark" not in line and not line.lstrip().startswith(f"{name} = ")
    ]
    for line in used:
        turned, product = _TRANSPOSE.match(line), _PRODUCT.search(line)
        if turned and turned[2] == name:
            if not _is_operand(lines, visible, uses, turned[1]):
                return False
        elif product is None or name not in product["operands"].split(", "):
            return False
    return bool(used) and not any(f"outs({name} " in line for line in used)


def _size_bytes(shaped: str) -> int:
    """The size of `64x32xf16`; an element takes at least one byte."""
    *extents, element = shaped.split("x")
    bits = _ELEMENT_BITS.match(element)
    if bits is None:
        raise InternalError(f"an element of type {element} in the Linalg text")
    return prod(map(int, extents)) * -(-int(bits[1]) // 8)
