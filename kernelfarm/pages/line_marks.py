"""Which lines of a kernel's stages correspond.

Lines are linked in two steps. A statement of the loop kernel has a number, and emitters name values
after it: `add_2` in Triton source, `%add2` in LLVM IR. Triton's stages name lines of that source:
`#loc` in its MLIR, `!dbg` in LLVM IR, `.loc` in assembly. A kernel records which captured nodes it
computes with which operators, but not per statement, so a statement is linked to each node that
uses its operator.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
)
from kernelfarm.ir.text.kernel import print_kernel

_LINKED_BY_NAMES = "Lines are linked to statements by the names of values."
_COMMENT = re.compile(r"(?:(.*) <- )?captured node (\d{1,9}): (.*)")


class MarkKind(enum.Enum):
    """What the numbers of a line's marks are; the value is the letter in the page's data."""

    NODE = "n"
    STATEMENT = "s"
    SOURCE_LINE = "l"
    NONE = ""


@dataclass(frozen=True, slots=True)
class MarkedText:
    """The lines of one stage with their marks, and how its lines are linked to other stages'."""

    lines: tuple[str, ...]
    kind: MarkKind
    marks: tuple[tuple[int, ...], ...]
    how: str


@dataclass(frozen=True, slots=True)
class KernelOrigin:
    """A captured node that a kernel computes, with the operators that the kernel uses for it."""

    node: int
    op: str
    prims: frozenset[str]


def origins_of(kernel: Kernel) -> tuple[KernelOrigin, ...]:
    """The captured nodes of a kernel, as its comments name them."""
    found = (_COMMENT.fullmatch(comment) for comment in kernel.comments)
    return tuple(
        KernelOrigin(int(match[2]), match[1] or "", frozenset(match[3].split(", ")))
        for match in found
        if match
    )


def nodes_of_statements(kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """For each statement, the captured nodes that use its operator."""
    origins = origins_of(kernel)
    return tuple(
        tuple(o.node for o in origins if _operator(statement) in o.prims)
        for statement in kernel.body
    )


def mark_kernel(kernel: Kernel) -> MarkedText:
    """The loop kernel, whose last lines are its statements."""
    lines = tuple(print_kernel(kernel).rstrip("\n").split("\n"))
    first = len(lines) - len(kernel.body)
    marks = tuple((number - first,) if number >= first else () for number in range(len(lines)))
    how = "Statements are linked to captured nodes by operator: the kernel records no more."
    return MarkedText(lines, MarkKind.STATEMENT, marks, how)


def mark_stage(name: str, text: str, kernel: Kernel) -> MarkedText:
    """A stage of a kernel by its name; a stage that records no origin has no marks."""
    lines = tuple(text.rstrip("\n").split("\n"))
    if name == "triton":
        own = tuple((number,) for number in range(1, len(lines) + 1))
        return MarkedText(lines, MarkKind.SOURCE_LINE, own, _LINKED_BY_NAMES)
    source = f"{kernel.name}.py"
    for how, marked in _FORMS:
        marks = marked(lines, source)
        if any(marks):
            return MarkedText(lines, MarkKind.SOURCE_LINE, marks, how)
    marks = _by_names(lines, kernel)
    if any(marks):
        return MarkedText(lines, MarkKind.STATEMENT, marks, _LINKED_BY_NAMES)
    how = "This stage records no origin of its lines, so none are marked."
    return MarkedText(lines, MarkKind.NONE, ((),) * len(lines), how)


def statements_of_source(text: str, kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """For each line of Triton source, from 1, the statements that it computes."""
    names = {f"{word}_{n}": n for n, s in enumerate(kernel.body) for word in _source_words(s)}
    stores: dict[str, list[int]] = {}
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Store):
            stores.setdefault(f"{statement.param}_ptr", []).append(number)
    found: dict[int, tuple[int, ...]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        target, is_assignment, _ = line.strip().partition(" = ")
        if is_assignment and target in names:
            found[number] = (names[target],)
        elif written := _STORE.match(line):
            found[number] = tuple(stores.get(written[1], ()))
    return {number: statements for number, statements in found.items() if statements}


_STORE = re.compile(r"\s*(?:\w+ = )?tl\.(?:store|atomic_\w+)\((\w+)")


def _operator(statement: Statement) -> str:
    match statement:
        case Compute(op=op) | Reduce(op=op) | Scan(op=op):
            return op
        case Sort():
            return "sort"
        case _:
            return ""


def _source_words(statement: Statement) -> tuple[str, ...]:
    """The words that may stand before the statement's number in a name of Triton source."""
    match statement:
        case Load(param=param):
            return (param,)
        case Compute(op="convert", dtype=dtype):
            return (dtype.value,)
        case Compute() | Reduce() | Scan() | Sort():
            return (_operator(statement),)
        case _:
            return tuple(word for kind, word in _WORDS.items() if isinstance(statement, kind))


_WORDS: dict[type, str] = {Literal: "literal", IndexValue: "position", Indirect: "index"}
_NAME = re.compile(r"%([A-Za-z_]\w*)")


def _by_names(lines: Sequence[str], kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """The statements whose values a line of LLVM IR names."""
    names: dict[str, int] = {}
    for number, statement in enumerate(kernel.body):
        match statement:
            case Load(param=param):
                names[f"{param}_v{number}"] = number
            case Indirect():
                names[f"indirect{number}"] = number
            case _:
                names |= {f"{word}{number}": number for word in (_operator(statement),) if word}
    return tuple(
        tuple(dict.fromkeys(names[n] for n in _NAME.findall(line) if n in names)) for line in lines
    )


_LOC_DEFINITION = re.compile(r"(#loc\d*) = loc\((.*)\)")
_LOC_NAME = re.compile(r"#loc\d*")
_FILE_LINE = re.compile(r'"([^"]*)":(\d{1,9}):')
_LOC_USE = re.compile(r"loc\((#loc\d*)\)\s*\{?$")


def _by_mlir_locations(lines: Sequence[str], source: str) -> tuple[tuple[int, ...], ...]:
    """Lines of MLIR: `loc(#loc7)` at the end, with definitions that name others."""
    matches = (_LOC_DEFINITION.match(line) for line in lines)
    definitions = {found[1]: found[2] for found in matches if found}
    known: dict[str, frozenset[int]] = {}

    def resolved(name: str, depth: int = 0) -> frozenset[int]:
        if name not in known:
            body = definitions.get(name, "")
            own = {int(line) for file, line in _FILE_LINE.findall(body) if file == source}
            named = _LOC_NAME.findall(body) if depth < _DEEPEST else []
            known[name] = frozenset(own.union(*(resolved(n, depth + 1) for n in named)))
        return known[name]

    def of(line: str) -> Iterable[int]:
        used = _LOC_USE.search(line)
        return resolved(used[1]) if used and not line.startswith("#loc") else ()

    return tuple(tuple(sorted(of(line))) for line in lines)


_DEEPEST = 32
"""Locations that name others are followed so far; inlined functions nest a few levels."""
_DEBUG_USE = re.compile(r"!dbg (!\d+)")
_DEBUG_DEFINITION = re.compile(r"(!\d+) = (?:distinct )?!DILocation\(line: (\d{1,9}),(.*)\)")
_INLINED = re.compile(r"inlinedAt: (!\d+)")


def _by_debug_locations(lines: Sequence[str], source: str) -> tuple[tuple[int, ...], ...]:
    """Lines of LLVM IR: the outermost place of `!dbg`, which is in the kernel's own source."""
    definitions = {
        found[1]: (int(found[2]), _INLINED.search(found[3]))
        for line in lines
        if (found := _DEBUG_DEFINITION.match(line))
    }

    def outermost(name: str) -> tuple[int, ...]:
        for _ in range(_DEEPEST):
            line, inlined = definitions.get(name, (0, None))
            if inlined is None:
                return (line,) if line else ()
            name = inlined[1]
        return ()

    used = (_DEBUG_USE.search(line) for line in lines)
    return tuple(outermost(found[1]) if found else () for found in used)


_LOC_DIRECTIVE = re.compile(r"\s*\.loc\s+(\d+) (\d{1,9}) \d+")
_INLINED_AT = re.compile(r"inlined_at (\d+) (\d{1,9}) \d+")


def _by_loc_directives(lines: Sequence[str], source: str) -> tuple[tuple[int, ...], ...]:
    """Lines of assembly: the instructions after a `.loc` of the kernel's own source.

    A `.loc` of an inlined function names the line that calls it; if that is in another file, the
    `.loc` before it stays in force.
    """
    own = {
        found[1] for line in lines if f"{source}:" in line and (found := _LOC_DIRECTIVE.match(line))
    }
    marks: list[tuple[int, ...]] = []
    current: tuple[int, ...] = ()
    for line in lines:
        if found := _LOC_DIRECTIVE.match(line):
            places = [found.groups(), *_INLINED_AT.findall(line)]
            here = tuple(int(at) for file, at in places if file in own and at != "0")
            current = here or (current if found[1] not in own else ())
        elif "func_end" in line:
            current = ()
        marks.append(current)
    return tuple(marks)


_Marked = Callable[[Sequence[str], str], tuple[tuple[int, ...], ...]]
_FORMS: tuple[tuple[str, _Marked], ...] = (
    ("Lines are linked to source lines by MLIR locations.", _by_mlir_locations),
    ("Lines are linked to source lines by debug locations.", _by_debug_locations),
    ("Instructions are linked to source lines by `.loc`.", _by_loc_directives),
)
