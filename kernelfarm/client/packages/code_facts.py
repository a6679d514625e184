"""Describes the code that tracing a call would read, without tracing it.

Starting at a function, or at the methods of a model's modules, this follows the names that the code
uses: functions, methods and values of its modules, and its closures. What belongs to PyTorch or to
Python is described by their versions. PyTorch records later which lines it really traced; the
header of a package has these, too.
"""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from kernelfarm.client.packages.described_values import described, is_versioned

MAX_FUNCTIONS = 5000

_MAX_ITEMS = 64
_CACHED = type(functools.cache(id))


class TooMuchCodeError(Exception):
    """The code names more than `MAX_FUNCTIONS` functions."""


def code_facts(functions: Iterable[Any], classes: Iterable[type]) -> dict[str, str]:
    """The functions and values that the code of `functions` uses, by name.

    Methods of `classes` are used by their name alone, because the object is not known.

    Raises:
        TooMuchCodeError: there are too many functions.
    """
    walk = _Walk(classes)
    for function in functions:
        walk.add(function)
    return walk.facts()


class _Walk:
    def __init__(self, classes: Iterable[type]) -> None:
        self._facts: dict[str, str] = {}
        self._seen: set[CodeType] = set()
        self._names: set[str] = set()
        self._waiting: deque[FunctionType] = deque()
        self._members: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        classes_seen = {base for found in classes for base in found.__mro__}
        for found in sorted(classes_seen, key=_name_of):
            self._add_class(found)

    def add(self, value: Any) -> None:
        """Adds a function, if it is one that no version describes."""
        for function in _functions_of(value):
            if is_versioned(function.__module__) or function.__code__ in self._seen:
                continue
            if len(self._seen) >= MAX_FUNCTIONS:
                raise TooMuchCodeError
            self._seen.add(function.__code__)
            self._waiting.append(function)

    def facts(self) -> dict[str, str]:
        while self._waiting:
            self._describe(self._waiting.popleft())
        return dict(sorted(self._facts.items()))

    def _add_class(self, found: type) -> None:
        if is_versioned(found.__module__):
            return
        for name, value in vars(found).items():
            self._members[name].append((f"{_name_of(found)}.{name}", value))

    def _describe(self, function: FunctionType) -> None:
        code = function.__code__
        name = f"code {function.__module__}:{function.__qualname__}"
        while name in self._facts:  # functions that a factory made have one name
            name += "'"
        hasher = hashlib.sha256()
        for text in _texts(code):
            data = text.encode("utf-8", "surrogatepass")
            hasher.update(b"%d:" % len(data) + data)
        values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        values += [_content(cell) for cell in function.__closure__ or ()]
        hasher.update(" ".join(map(described, values)).encode("utf-8", "surrogatepass"))
        self._facts[name] = hasher.hexdigest()
        for value in values:
            self.add(value)
        names = set(_names(code))
        for used in sorted(names - self._names):
            for name_of_member, member in self._members.get(used, ()):
                self._use(name_of_member, member)
        self._names |= names
        self._follow(function, names)

    def _follow(self, function: FunctionType, names: set[str]) -> None:
        """Adds what the code's names mean in the function's module."""
        scope = function.__globals__
        for name in sorted(names & scope.keys()):
            value = scope[name]
            if type(value) is ModuleType:
                if not is_versioned(value.__name__):
                    for attribute in sorted(names & vars(value).keys()):
                        self._use(f"{value.__name__}:{attribute}", vars(value)[attribute])
            else:
                self._use(f"{function.__module__}:{name}", value)

    def _use(self, name: str, value: Any) -> None:
        self._facts[f"value {name}"] = described(value)
        if isinstance(value, type):
            if not is_versioned(value.__module__):
                for method in ("__new__", "__init__", "__call__", "forward"):
                    self.add(vars(value).get(method))
        else:
            self.add(value)


def _texts(code: CodeType) -> Iterator[str]:
    """Everything of a code object that tracing may read; not the path of its file."""
    yield from (code.co_name, code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
    yield from (repr(code.co_freevars), repr(code.co_cellvars), code.co_exceptiontable.hex())
    yield from (str(code.co_flags), str(code.co_firstlineno), code.co_linetable.hex())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))  # the order of a set varies
        else:
            yield repr(constant)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _functions_of(value: Any) -> list[FunctionType]:
    """The Python functions that a value stands for: a function, a method, what a wrapper wraps."""
    found: list[FunctionType] = []
    waiting: list[Any] = [value]
    while waiting and len(found) < _MAX_ITEMS:
        item = waiting.pop()
        if isinstance(item, FunctionType) and item not in found:
            found.append(item)
            waiting.append(vars(item).get("__wrapped__"))
        elif type(item) is _CACHED:
            waiting.append(item.__wrapped__)
        elif isinstance(item, staticmethod | classmethod | MethodType):
            waiting.append(item.__func__)
        elif isinstance(item, property):
            waiting.append(item.fget)
    return found


def _name_of(found: type) -> str:
    return f"{found.__module__}:{found.__qualname__}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the name is not bound yet
        return None
