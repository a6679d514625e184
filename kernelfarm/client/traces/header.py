"""The header of a trace: everything but the graph, with a strict schema.

    length of the header, header (JSON), graph (protobuf, as in a compile request)

This module needs no torch: commands describe a trace by its header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kernelfarm.client.disk.files import sealed_with_header, unsealed_with_header
from kernelfarm.digest import MAX_PART_CHARS
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.graph_ir import Constant, Graph

TensorOption = bool | str | None
WindowTexts = tuple[tuple[str, ...], tuple[str, ...], str]

_KEY = re.compile(r"[0-9a-f]{64}")
_PART_NAME = re.compile(r"[a-z_]{1,32}")
_NODE_NUMBER = re.compile(r"[0-9]{1,9}")
_OPTION_NAMES = ("device", "layout", "pin_memory")
_OPTION_WORDS = ("here", "strided")


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The header's fields; `parts` are the parts of the graph's digest.

    `module_outputs` has tuples of number, argument and view; `outputs` has tuples of argument,
    offset and varying axes.
    """

    key: str
    parts: dict[str, str]
    sources: tuple[int | None, ...]
    module_outputs: tuple[tuple[int, int | None, WindowTexts | None], ...]
    negated: tuple[int, ...]
    tensor_options: dict[str, dict[str, TensorOption]]
    argument_count: int
    outputs: tuple[tuple[int | None, int | None, tuple[int, ...]], ...]
    written: tuple[int, ...]

    def to_json(self) -> str:
        """The header as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(content: bytes) -> TraceHeader:
        """The header of a text.

        Raises:
            ValueError: the text has other fields, or values of other types.
        """
        found = json.loads(content)
        names = {field.name for field in fields(TraceHeader)}
        if not isinstance(found, dict) or found.keys() != names:
            raise ValueError("a header with other fields")
        for name, is_valid in _RULES.items():
            if not is_valid(found[name]):
                raise ValueError(f"a header whose field {name!r} is not valid")
        return TraceHeader(**{name: _frozen(value) for name, value in found.items()})

    def check(self, graph: Graph) -> None:
        """Checks that the header refers only to existing nodes, outputs and arguments.

        Raises:
            MalformedMessageError: it does not fit the graph.
        """
        arguments = [source for source in self.sources if source is not None]
        arguments += [argument for _, argument, _ in self.module_outputs if argument is not None]
        arguments += [argument for argument, _, _ in self.outputs if argument is not None]
        arguments += [*self.negated, *self.written]
        results = [number for number, argument, _ in self.module_outputs if argument is None]
        is_whole = (
            len(self.sources) == len(graph.inputs)
            and len(self.outputs) == len(self.module_outputs)
            and all(number < self.argument_count for number in arguments)
            and all(number < len(graph.outputs) for number in results)
            and all(int(number) < len(graph.nodes) for number in self.tensor_options)
        )
        held = (
            given.kind
            for source, given in zip(self.sources, graph.inputs, strict=False)
            if source is None
        )
        if not is_whole or not all(isinstance(kind, Constant) for kind in held):
            raise MalformedMessageError("a trace whose header does not fit its graph")


def joined(header: str, graph: bytes) -> bytes:
    """The bytes of a trace, from its header and its graph."""
    return sealed_with_header(header, graph)


def parted(content: bytes) -> tuple[TraceHeader, bytes]:
    """The header and the encoded graph of a trace.

    Raises:
        MalformedMessageError: the bytes are not a trace.
    """
    try:
        header, graph = unsealed_with_header(content)
        return TraceHeader.from_json(header), graph
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(f"not a trace: {error}") from error


def _frozen(value: Any) -> Any:
    """The value with tuples in place of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


Rule = Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _optional(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def _items(rule: Rule) -> Rule:
    return lambda value: isinstance(value, list) and all(map(rule, value))


def _record(*rules: Rule) -> Rule:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(rules)
        and all(rule(item) for rule, item in zip(rules, value, strict=True))
    )


def _is_map(value: Any, names: re.Pattern[str], rule: Rule) -> bool:
    return isinstance(value, dict) and all(
        names.fullmatch(name) and rule(item) for name, item in value.items()
    )


def _is_part(value: Any) -> bool:
    return _is_text(value) and len(value) <= MAX_PART_CHARS


def _are_options(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in _OPTION_NAMES and (item is None or isinstance(item, bool) or item in _OPTION_WORDS)
        for name, item in value.items()
    )


_is_window = _record(_items(_is_text), _items(_is_text), _is_text)

_RULES: Mapping[str, Rule] = {
    "key": lambda value: _is_text(value) and _KEY.fullmatch(value) is not None,
    "parts": lambda value: _is_map(value, _PART_NAME, _is_part),
    "sources": _items(_optional(_is_number)),
    "module_outputs": _items(_record(_is_number, _optional(_is_number), _optional(_is_window))),
    "negated": _items(_is_number),
    "tensor_options": lambda value: _is_map(value, _NODE_NUMBER, _are_options),
    "argument_count": _is_number,
    "outputs": _items(_record(_optional(_is_number), _optional(_is_integer), _items(_is_number))),
    "written": _items(_is_number),
}
