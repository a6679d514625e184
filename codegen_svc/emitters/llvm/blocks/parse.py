"""Reads the text of Triton's first intermediate form, which its front end printed.

The text comes from a toolchain that read a user's source, so its size is bounded. What a processor
has no code for is refused later, by the operation's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from codegen_svc.emitters.llvm.blocks.program import BlockType, Operation, Program, Region
from kernelfarm.errors import KernelRejectedError

MAX_TEXT_CHARS: Final = 4 << 20
MAX_OPERATIONS: Final = 20_000
MAX_DEPTH: Final = 32
MAX_BLOCK_ELEMS: Final = 1 << 20
"""Triton's own limit for the elements of a block."""

_NAME: Final = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_LINE: Final = re.compile(r'(?:(%[\w$.\-]+)(?::(\d+))? = )?"?([a-z_]+\.[a-z_0-9.]+)"?(.*)')
_FUNCTION: Final = re.compile(
    r"tt\.func (?:public |private )?@([\w$.\-]+)\((.*)\)(?: attributes.*)? \{"
)
_FOR: Final = re.compile(
    r"(?: unsigned)? (%\S+) = (%\S+) to (%\S+) step (%\S+)"
    r"(?: iter_args\((.*?)\) -> \((.*)\)\s*)?\s*: (\w+) \{"
)
_WHILE: Final = re.compile(r" \((.*)\) : \(.*\) -> (.*) \{")
_BLOCK: Final = re.compile(r"\^bb\d+\((.*)\):")
_TENSOR: Final = re.compile(r"tensor<((?:\d+x)+)(.+)>")
_ATTRIBUTES: Final = re.compile(r"<?\{[^{}]*\}>?")


def _pointee(element: str) -> str:
    return element.removeprefix("!tt.ptr<").partition(">")[0].partition(",")[0]


# Operations whose result has the shape of the first operand, and this element type.
_OF_OPERAND: Final[Mapping[str, Callable[[str], str]]] = {
    "arith.cmpi": lambda _: "i1",
    "arith.cmpf": lambda _: "i1",
    "tt.load": _pointee,
    "tt.addptr": lambda element: element,
}


def parse_program(text: str) -> Program:
    """The only function of a module.

    Raises:
        KernelRejectedError: it is too large, or a line has a form that is not known.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise KernelRejectedError(
            f"{len(text)} characters of intermediate code; expected at most {MAX_TEXT_CHARS}"
        )
    lines = [line.strip() for line in _without_locations(text).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return _Reader(lines).program()


def _without_locations(text: str) -> str:
    """The text without `loc(...)`, whose parentheses may nest."""
    parts, at = [], 0
    while (found := text.find(" loc(", at)) >= 0:
        parts.append(text[at:found])
        depth, at = 1, found + len(" loc(")
        is_quoted = False
        while depth and at < len(text):
            char = text[at]
            if char == '"':
                is_quoted = not is_quoted
            elif not is_quoted:
                depth += (char == "(") - (char == ")")
            at += 1
    return "".join((*parts, text[at:]))


class _Reader:
    def __init__(self, lines: Sequence[str]) -> None:
        self._lines, self._at = lines, 0
        self._types: dict[int, BlockType] = {}
        self._scopes: list[dict[str, int]] = [{}]
        self._operations = 0

    def program(self) -> Program:
        functions = [n for n, line in enumerate(self._lines) if line.startswith("tt.func")]
        if len(functions) != 1:
            raise KernelRejectedError(
                f"{len(functions)} functions of a user kernel; expected one: a helper that is not"
                " inlined has no code for processors"
            )
        self._at = functions[0]
        match = self._matched(_FUNCTION, self._next())
        params = []
        for entry in _split(match[2]):
            name, _, kind = _ATTRIBUTES.sub("", entry).partition(":")
            params.append(self._define(name.strip(), parse_type(kind)))
        body, _ = self._body()
        return Program(match[1], tuple(params), self._types, body)

    def _next(self) -> str:
        if self._at >= len(self._lines):
            raise KernelRejectedError("intermediate code of a user kernel that ends early")
        self._at += 1
        return self._lines[self._at - 1]

    def _matched(self, pattern: re.Pattern[str], text: str) -> re.Match[str]:
        match = pattern.fullmatch(text)
        if match is None:
            raise KernelRejectedError(f"intermediate code {text[:200]!r}: its form is not known")
        return match

    def _define(self, name: str, kind: BlockType) -> int:
        if kind.elems > MAX_BLOCK_ELEMS:
            raise KernelRejectedError(
                f"a block of {kind.elems} elements; expected at most {MAX_BLOCK_ELEMS}"
            )
        number = len(self._types)
        self._types[number] = kind
        self._scopes[-1][name] = number
        return number

    def _find(self, name: str) -> int:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise KernelRejectedError(f"intermediate code of a user kernel names {name[:80]} too early")

    def _names(self, text: str) -> tuple[int, ...]:
        return tuple(self._find(name) for name in _NAME.findall(text))

    def _body(self) -> tuple[tuple[Operation, ...], str]:
        """The operations up to a line that begins with a brace, and this line."""
        if len(self._scopes) > MAX_DEPTH:
            raise KernelRejectedError(f"a user kernel is nested more than {MAX_DEPTH} deep")
        ops: list[Operation] = []
        while not (line := self._next()).startswith("}"):
            ops.append(self._operation(line))
        return tuple(ops), line

    def _operation(self, line: str) -> Operation:
        self._operations += 1
        if self._operations > MAX_OPERATIONS:
            raise KernelRejectedError(
                f"a user kernel of more than {MAX_OPERATIONS} operations; expected fewer"
            )
        if line.startswith("^"):
            raise KernelRejectedError(
                "a user kernel that returns early has no code for processors; expected one return"
                " at its end, and conditions around statements"
            )
        match = self._matched(_LINE, line)
        results = _result_names(match[1], match[2])
        name, rest = match[3], match[4]
        if name == "scf.for":
            return self._for(results, rest)
        if name == "scf.if":
            return self._if(results, rest)
        if name == "scf.while":
            return self._while(results, rest)
        if rest.endswith("({"):
            return self._combination(name, results, rest)
        if rest.endswith("{"):
            raise KernelRejectedError(f"operation {name} has no code for processors")
        return self._plain(name, results, rest)

    def _plain(self, name: str, results: Sequence[str], rest: str) -> Operation:
        attributes = " ".join(_ATTRIBUTES.findall(rest))
        words, _, kinds = _ATTRIBUTES.sub("", rest).partition(" : ")
        operands = self._names(words)
        numbers = self._define_all(results, self._result_types(name, operands, words, kinds))
        return Operation(name, operands, numbers, words.strip(), attributes)

    def _result_types(
        self, name: str, operands: Sequence[int], words: str, kinds: str
    ) -> list[BlockType]:
        """The results' types: a line states them, or they follow from the operands' types."""
        for arrow in ("->", " to "):
            if arrow in kinds:
                return parse_types(kinds.rpartition(arrow)[2])
        if name in _OF_OPERAND:
            source = self._types[operands[0]]
            return [BlockType(source.shape, _OF_OPERAND[name](source.element))]
        if not kinds and words.strip() in ("true", "false"):
            return [BlockType((), "i1")]
        return parse_types(_split(kinds)[-1]) if kinds else []

    def _define_all(self, names: Sequence[str], kinds: Sequence[BlockType]) -> tuple[int, ...]:
        if len(names) > len(kinds):
            raise KernelRejectedError(f"intermediate code with {len(names)} results: no types")
        return tuple(self._define(name, kinds[n]) for n, name in enumerate(names))

    def _for(self, results: Sequence[str], rest: str) -> Operation:
        match = self._matched(_FOR, rest)
        bounds = self._names(" ".join(match.group(2, 3, 4)))
        pairs = [entry.split(" = ") for entry in _split(match[5] or "")]
        kinds = parse_types(match[6] or "")
        starts = self._names(" ".join(pair[1] for pair in pairs))
        self._scopes.append({})
        params = [self._define(match[1], parse_type(match[7]))]
        params += self._define_all([pair[0] for pair in pairs], kinds)
        body, _ = self._body()
        self._scopes.pop()
        region = Region(tuple(params), body)
        numbers = self._define_all(results, kinds)
        words = "unsigned" if rest.startswith(" unsigned") else ""
        return Operation("scf.for", (*bounds, *starts), numbers, words, "", (region,))

    def _if(self, results: Sequence[str], rest: str) -> Operation:
        head, _, kinds = rest.removesuffix("{").partition("->")
        condition = self._names(head)
        regions, line = [], ""
        for _ in range(2):
            self._scopes.append({})
            body, line = self._body()
            self._scopes.pop()
            regions.append(Region((), body))
            if "else" not in line:
                break
        numbers = self._define_all(results, parse_types(kinds))
        return Operation("scf.if", condition, numbers, "", "", tuple(regions))

    def _while(self, results: Sequence[str], rest: str) -> Operation:
        match = self._matched(_WHILE, rest)
        pairs = [entry.split(" = ") for entry in _split(match[1])]
        starts = self._names(" ".join(pair[1] for pair in pairs))
        self._scopes.append({})
        kinds = [self._types[number] for number in starts]
        before = self._define_all([pair[0] for pair in pairs], kinds)
        test, _ = self._body()
        self._scopes.pop()
        self._scopes.append({})
        after = self._block_params()
        body, _ = self._body()
        self._scopes.pop()
        numbers = self._define_all(results, parse_types(match[2]))
        regions = (Region(before, test), Region(after, body))
        return Operation("scf.while", starts, numbers, "", "", regions)

    def _combination(self, name: str, results: Sequence[str], rest: str) -> Operation:
        """An operation with a function of elements, such as a reduction."""
        operands = self._names(rest)
        self._scopes.append({})
        params = self._block_params()
        body, line = self._body()
        self._scopes.pop()
        numbers = self._define_all(results, parse_types(line.rpartition("->")[2]))
        attributes = " ".join(_ATTRIBUTES.findall(rest))
        return Operation(name, operands, numbers, "", attributes, (Region(params, body),))

    def _block_params(self) -> tuple[int, ...]:
        line = self._next()
        if not line.startswith("^"):
            self._at -= 1
            return ()
        found = []
        for entry in _split(self._matched(_BLOCK, line)[1]):
            name, _, kind = entry.partition(":")
            found.append(self._define(name.strip(), parse_type(kind)))
        return tuple(found)


def parse_types(text: str) -> list[BlockType]:
    """The types of a list with or without parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(entry) for entry in _split(text)]


def parse_type(text: str) -> BlockType:
    """One type."""
    text = text.strip()
    match = _TENSOR.fullmatch(text)
    if match is None:
        return BlockType((), text)
    shape = tuple(int(side) for side in match[1].split("x") if side)
    return BlockType(shape, match[2])


def _result_names(name: str | None, count: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    return (name,) if count is None else tuple(f"{name}#{n}" for n in range(int(count)))


def _split(text: str) -> list[str]:
    """The entries between commas that stand in no brackets."""
    entries, depth, last = [], 0, 0
    for at, char in enumerate(text):
        if char in "<({[":
            depth += 1
        elif char in ">)}]" and text[at - 1] != "-":
            depth -= 1
        elif char == "," and not depth:
            entries.append(text[last:at].strip())
            last = at + 1
    entries.append(text[last:].strip())
    return [entry for entry in entries if entry]
