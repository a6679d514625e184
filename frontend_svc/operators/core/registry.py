"""The closed operator table: what the farm does with each captured operator.

An operator either decomposes by a function of this package, or belongs to a group that the
framework runs (`extern`), for the reason of the group. Any other operator is the user's own; it is
extern too.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, TypeVar

from frontend_svc.operators.core.arguments import READERS, Reader, Values
from frontend_svc.operators.core.extents import Extents
from frontend_svc.operators.core.values import Tensor
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.graph_ir import Arg, Node, TensorType


class NotDecomposedError(Exception):
    """A form of an operator that its decomposition does not cover; the framework runs it.

    The message is the reason that `kernelfarm explain` shows.
    """


Decomposition = Callable[..., Tensor | tuple[Tensor | None, ...]]
"""(builder, arguments...) -> one value per result; None for a result that nothing can use."""

ExternCheck = Callable[[Extents, Sequence[TensorType]], TensorType]
"""(extents, operand types) -> the type that the operator's result must have."""

ExternOperands = Callable[..., Sequence[Tensor]]
"""(builder, operands) -> the operands that the framework receives instead."""

_Function = TypeVar("_Function", bound=Decomposition)

# They say where a result is stored, nothing about its values.
_PLACEMENT = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator; `default` is `inspect.Parameter.empty` if it is required."""

    name: str
    reader: Reader
    default: Any
    is_positional: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator's parameters, in order."""

    parameters: tuple[Parameter, ...]
    by_name: Mapping[str, int]
    positional: int

    def bind(self, node: Node, values: Values) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for the decomposition, read from a captured node.

        Raises:
            InvalidGraphError: an argument is missing, unknown, given twice or of the wrong kind.
        """
        if len(node.args) > self.positional:
            raise InvalidGraphError(
                f"{len(node.args)} positional arguments; expected at most {self.positional}"
            )
        given: dict[int, Arg] = dict(enumerate(node.args))
        for name, arg in node.attrs:
            index = self.by_name.get(name)
            if index is None:
                if name in _PLACEMENT:
                    continue
                raise InvalidGraphError(f"unknown argument '{name}'; expected {self._names()}")
            if index in given:
                raise InvalidGraphError(f"argument '{name}' is given twice")
            given[index] = arg
        read = [self._read(index, given, values) for index in range(len(self.parameters))]
        names = self.parameters[self.positional :]
        keywords = {p.name: value for p, value in zip(names, read[self.positional :], strict=True)}
        return read[: self.positional], keywords

    def _read(self, index: int, given: dict[int, Arg], values: Values) -> Any:
        parameter = self.parameters[index]
        if index not in given:
            if parameter.default is inspect.Parameter.empty:
                raise InvalidGraphError(f"argument '{parameter.name}' is missing")
            return parameter.default
        try:
            return parameter.reader(given[index], values)
        except InvalidGraphError as error:
            raise InvalidGraphError(f"argument '{parameter.name}': {error}") from None

    def _names(self) -> str:
        return ", ".join(self.by_name) or "none"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that decomposes to Prims; `family` is the module of its decomposition.

    `note` is for people: the forms that the decomposition does not cover. `sorts_rows` is true if
    the decomposition depends on which rows a target can sort.
    """

    name: str
    family: str
    decompose: Decomposition
    signature: Signature
    note: str = ""
    sorts_rows: bool = False


@dataclass(frozen=True, slots=True)
class ExternGroup:
    """Operators that the client's framework runs, for one reason.

    `patterns` are full names with `*` for any text. `reads_memory` marks operators whose results
    depend on the memory layout of the first operand, not only on its elements; where the stated
    layout allows it, they become views. `has_effects` keeps steps whose results nothing uses.
    """

    name: str
    reason: str
    patterns: tuple[str, ...]
    is_contraction: bool = False
    reads_memory: bool = False
    has_effects: bool = False

    @property
    def explanation(self) -> str:
        """The reason that `kernelfarm explain` shows for the group's operators."""
        return f"{self.name}: {self.reason}"

    def covers(self, operator: str) -> bool:
        """Whether the operator of this name is in the group."""
        return any(fnmatchcase(operator, pattern) for pattern in self.patterns)


DECOMPOSED: dict[str, Operator] = {}
"""Operators with a decomposition, by the name on the wire."""

EXTERN_GROUPS: list[ExternGroup] = []
"""Groups of operators that the framework runs."""

EXTERN_CHECKS: dict[str, ExternCheck] = {}
"""Result types that are checked, of operators that the framework runs, by name on the wire."""

EXTERN_OPERANDS: dict[str, ExternOperands] = {}
"""Changes of operands, for operators that the framework runs, by name on the wire."""


def decomposes(
    *names: str,
    note: str = "",
    fixed: Mapping[str, Any] | None = None,
    sorts_rows: bool = False,
) -> Callable[[_Function], _Function]:
    """Registers a decomposition for the operators of these names (`aten.add.Tensor`).

    The annotations of the function state the kind of each argument, see `arguments.READERS`.
    `fixed` are keyword arguments that the operator's name determines, so that a graph does not pass
    them. So one function serves several operators: `fixed={"axes": 2}` and `fixed={"axes": 3}` make
    two operators of a pooling function with a parameter `axes`.
    """

    def register(function: _Function) -> _Function:
        signature = signature_of(function, frozenset(fixed or ()))
        family = family_of(function.__module__)
        decompose = partial(function, **fixed) if fixed else function
        for name in names:
            if name in DECOMPOSED:
                raise ValueError(f"operator {name} is registered twice")
            DECOMPOSED[name] = Operator(name, family, decompose, signature, note, sorts_rows)
        return function

    return register


def sorts_rows(name: str) -> bool:
    """True if the decomposition of the operator of this name depends on what a target can sort."""
    operator = DECOMPOSED.get(name)
    return operator is not None and operator.sorts_rows


def family_of(module: str) -> str:
    """The name of a module of operators in the table: its package and its own name."""
    return ".".join(module.split(".")[-2:])


def send_to_framework(*groups: ExternGroup) -> None:
    """Registers groups of operators that the client's framework runs."""
    EXTERN_GROUPS.extend(groups)


@lru_cache(maxsize=4096)
def extern_group_of(operator: str) -> ExternGroup | None:
    """The group of an operator that does not decompose; None if it is in no group."""
    return next((group for group in EXTERN_GROUPS if group.covers(operator)), None)


def signature_of(function: Callable[..., Any], fixed: frozenset[str] = frozenset()) -> Signature:
    """The parameters of a decomposition after the builder, without those that are fixed."""
    hints = typing.get_type_hints(function, localns=_late_names())
    parameters = list(inspect.signature(function).parameters.values())[1:]
    kinds = [p for p in parameters if p.name not in fixed]
    read = tuple(
        # A trailing underscore marks names that are keywords of Python (`from_`).
        Parameter(
            p.name.removesuffix("_"),
            READERS[hints[p.name]],
            p.default,
            p.kind is not p.KEYWORD_ONLY,
        )
        for p in kinds
    )
    positional = sum(parameter.is_positional for parameter in read)
    by_name = {parameter.name: index for index, parameter in enumerate(read)}
    return Signature(read, by_name, positional)


def _late_names() -> dict[str, Any]:
    # Importing `PrimsBuilder` here would be a cycle.
    return {"PrimsBuilder": object}
