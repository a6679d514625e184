"""YAML as plain values, with the line of each value for error messages.

A small YAML: no aliases, because a few of them may expand to gigabytes, no duplicate keys, no tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from kernelfarm.errors import CallerError

Path = tuple[str | int, ...]
_MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A document's values, and the line of each value by its path."""

    value: Any
    _lines: dict[Path, int] = field(repr=False)

    def line_of(self, path: Sequence[str | int]) -> int:
        """The line (from 1) of the value at a path, or of the nearest value that contains it."""
        at = tuple(path)
        while at and at not in self._lines:
            at = at[:-1]
        return self._lines.get(at, 1)


def parse_yaml(text: str, name: str) -> YamlDocument:
    """The document of a text; messages name the file.

    Raises:
        CallerError: the text is not such a document; the message has the line.
    """
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise _fault(name, event.start_mark, "an alias (*name); write the value out")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise CallerError(f"{name} is empty; expected a mapping")
        lines: dict[Path, int] = {}
        return YamlDocument(_Values(name, lines).of(root, ()), lines)
    except yaml.MarkedYAMLError as error:
        where = f"{name}:{error.problem_mark.line + 1}" if error.problem_mark else name
        raise CallerError(f"{where}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CallerError(f"{name}: not YAML: {error}") from error


class _Values:
    """Turns nodes into values, and notes their lines."""

    def __init__(self, name: str, lines: dict[Path, int]) -> None:
        self._name = name
        self._lines = lines
        self._scalars = yaml.SafeLoader("")

    def of(self, node: yaml.Node, path: Path) -> Any:
        self._lines[path] = node.start_mark.line + 1
        if len(path) > _MAX_DEPTH:
            raise _fault(self._name, node.start_mark, f"more than {_MAX_DEPTH} levels of nesting")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.of(child, (*path, at)) for at, child in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            key = self._scalar(key_node)
            if not isinstance(key, str):
                raise _fault(self._name, key_node.start_mark, f"key {key!r}; expected a text")
            if key in found:
                raise _fault(self._name, key_node.start_mark, f"key {key!r} is there twice")
            found[key] = self.of(child, (*path, key))
            self._lines[(*path, key)] = key_node.start_mark.line + 1
        return found

    def _scalar(self, node: yaml.Node) -> Any:
        known = ("str", "int", "float", "bool", "null")
        if not isinstance(node, yaml.ScalarNode) or node.tag not in {f"{_TAG}{n}" for n in known}:
            raise _fault(
                self._name,
                node.start_mark,
                f"a value of type {node.tag.rpartition(':')[2]!r}; expected one of"
                f" {', '.join(known)}; put a text between quotes",
            )
        return self._scalars.construct_object(node)


def _fault(name: str, mark: Any, message: str) -> CallerError:
    return CallerError(f"{name}:{mark.line + 1}: {message}")
