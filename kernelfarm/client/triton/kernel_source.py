"""The source of a `@triton.jit` function in the closed language that the farm accepts.

The text is made of the syntax trees of the function and of the functions that it calls. Comments,
decorators and annotations are left out, modules get fixed names, and global constants become
literals. So equal kernels have equal texts, whatever file they are in.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.hints import Hint, hints_of, with_hints
from kernelfarm.ir.triton.language import BUILTINS, LIBDEVICE_MODULE, TL, TRITON_MODULE

_MODULES: Mapping[str, str] = {
    "triton": TRITON_MODULE,
    "triton.language": TL,
    "triton.language.extra.libdevice": LIBDEVICE_MODULE,
    "triton.language.extra.cuda.libdevice": LIBDEVICE_MODULE,
    "triton.language.extra.hip.libdevice": LIBDEVICE_MODULE,
}
_LANGUAGE = "triton.language"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A source, the name of its function, the function's parameters, and their defaults."""

    text: str
    entry: str
    params: tuple[str, ...]
    constexprs: frozenset[str]
    defaults: Mapping[str, Any]


def kernel_source(function: Any) -> KernelSource:
    """The source of a function that `triton.jit` returned.

    Raises:
        UserKernelError: it is no such function, its source cannot be read, or it uses a name that
            cannot travel.
    """
    return _Sources().of(jit_function(function))


def jit_function(function: Any) -> Any:
    """The object that `triton.jit` returned, below autotuners and heuristics.

    Raises:
        UserKernelError: there is none.
    """
    found = function
    while not _is_jit(found):
        inner = getattr(found, "fn", None)
        if inner is None or inspect.isfunction(found):
            raise UserKernelError(
                f"{getattr(function, '__name__', function)!r} is no function of triton.jit;"
                " expected one"
            )
        found = inner
    return found


def _is_jit(value: Any) -> bool:
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    return "triton.runtime.jit.JITFunction" in names


class _Sources:
    """The functions and constants of one source, by the names that they get in it."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._definitions: dict[str, ast.FunctionDef] = {}
        self._constants: dict[str, str] = {}
        self._hints: dict[int, list[Hint]] = {}
        self._kept: list[Any] = []

    def of(self, jit: Any) -> KernelSource:
        """The source of a function with everything that it uses."""
        name = self.add(jit)
        lines = [f"{constant} = {text}" for constant, text in sorted(self._constants.items())]
        lines += [self._written(node) for node in self._definitions.values()]
        params = tuple(param.name for param in jit.params)
        return KernelSource(
            text="\n".join(lines) + "\n",
            entry=name,
            params=params,
            constexprs=frozenset(param.name for param in jit.params if param.is_constexpr),
            defaults={p.name: p.default for p in jit.params if p.default is not inspect._empty},
        )

    def _written(self, node: ast.FunctionDef) -> str:
        """A definition's text, in which each statement has its hints."""
        text = ast.unparse(node)
        if not any(id(statement) in self._hints for statement in _statements(node)):
            return text
        lines = text.split("\n")
        written = _statements(ast.parse(text).body[0])
        for statement, shown in zip(_statements(node), written, strict=True):
            hints = self._hints.get(id(statement), [])
            lines[shown.lineno - 1] = with_hints(lines[shown.lineno - 1], hints)
        return "\n".join(lines)

    def add(self, jit: Any) -> str:
        """The name of a function in the source; adds it behind all that it calls."""
        known = self._names.get(id(jit))
        if known is not None:
            return known
        name = self._free_name(jit.fn.__name__)
        self._names[id(jit)] = name
        self._kept.append(jit)  # so that no other object gets its id
        node = _definition(jit)
        self._hints |= _hints_by_statement(jit, node)
        node.name = name
        node = _Names(jit.fn, self, node).visit(node)
        self._definitions[name] = ast.fix_missing_locations(node)
        return name

    def add_constant(self, name: str, value: Any) -> str:
        """The name of a constant in the source."""
        text = literal_text(value, f"the global {name}")
        name = name.rpartition(".")[2]
        while self._constants.get(name, text) != text or name in self._names.values():
            name = f"{name}_"
        self._constants[name] = text
        return name

    def _free_name(self, name: str) -> str:
        taken = {*self._names.values(), *self._constants}
        free, number = name, 1
        while free in taken or free in (TL, TRITON_MODULE, LIBDEVICE_MODULE):
            number += 1
            free = f"{name}_{number}"
        return free


def _definition(jit: Any) -> ast.FunctionDef:
    """The syntax tree of a function, without what has no part in its meaning."""
    try:
        text = textwrap.dedent(inspect.getsource(jit.fn))
        node = ast.parse(text).body[0]
    except (OSError, SyntaxError, IndexError) as error:
        raise UserKernelError(f"the source of {jit.fn.__name__} cannot be read: {error}") from error
    if not isinstance(node, ast.FunctionDef):
        raise UserKernelError(f"{jit.fn.__name__} is no plain function; expected def")
    node.decorator_list, node.returns = [], None
    constexprs = {param.name for param in jit.params if param.is_constexpr}
    for argument in node.args.args:
        is_constexpr = argument.arg in constexprs
        argument.annotation = ast.parse("tl.constexpr").body[0].value if is_constexpr else None  # type: ignore[attr-defined]
    defaults = {p.name: p.default for p in jit.params}
    named = [a.arg for a in node.args.args][len(node.args.args) - len(node.args.defaults) :]
    node.args.defaults = [
        _expression(literal_text(defaults[n], f"a default of {n}")) for n in named
    ]
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if is_docstring:
        node.body = node.body[1:] or [ast.Pass()]
    return node


def _statements(function: ast.AST) -> list[ast.stmt]:
    """The statements of a function, in an order that depends on their structure alone."""
    return [node for node in ast.walk(function) if isinstance(node, ast.stmt)][1:]


def _hints_by_statement(jit: Any, function: ast.FunctionDef) -> dict[int, list[Hint]]:
    """The hints of a function by the identity of their statement.

    A comment belongs to the statement at whose end it stands, else to the next one.
    """
    text = textwrap.dedent(inspect.getsource(jit.fn))
    statements = [node for node in _statements(function) if hasattr(node, "lineno")]
    statements.sort(key=lambda node: node.lineno)
    found: dict[int, list[Hint]] = {}
    for hint in hints_of(text):
        around = [s for s in statements if s.lineno <= hint.line <= _last_line(s)]
        below = [s for s in statements if s.lineno > hint.line]
        for chosen in around[-1:] or below[:1] or statements[-1:]:
            found.setdefault(id(chosen), []).append(hint)
    return found


def _last_line(statement: ast.stmt) -> int:
    """The last line of a simple statement, or of the head of a compound one."""
    body = getattr(statement, "body", None)
    if body:
        return max(statement.lineno, int(body[0].lineno) - 1)
    return statement.end_lineno or statement.lineno


class _Names(ast.NodeTransformer):
    """Replaces the global names of a function by those of the source."""

    def __init__(self, function: Callable[..., Any], sources: _Sources, node: ast.FunctionDef):
        self._sources = sources
        self._where = node.name
        variables = inspect.getclosurevars(function)
        self._known = {**function.__globals__, **variables.nonlocals}
        self._locals = {argument.arg for argument in node.args.args}
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._locals.add(child.id)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """The parameter, whose annotation is final."""
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """The name in the source of a global."""
        if not isinstance(node.ctx, ast.Load) or node.id in self._locals:
            return node
        return self._replaced(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """The name of a module's attribute; other attributes keep theirs."""
        path = _path(node)
        if path is None or path[0] in self._locals:
            return self.generic_visit(node)
        found = self._value(path[0])
        for number, name in enumerate(path[1:], 1):
            if not isinstance(found, ModuleType):
                rest = path[number:]
                base = self._shown(found, ".".join(path[:number]))
                return _expression(".".join((ast.unparse(base), *rest)))
            found = getattr(found, name, _MISSING)
            if found is _MISSING:
                raise UserKernelError(f"{self._where}: {'.'.join(path)} does not exist")
        return self._shown(found, ".".join(path))

    def _replaced(self, node: ast.expr, name: str) -> ast.expr:
        value = self._value(name)
        if name in BUILTINS and value is getattr(builtins, name):
            return node
        return self._shown(value, name)

    def _value(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        found = getattr(builtins, name, _MISSING)
        if found is _MISSING:
            raise UserKernelError(f"{self._where}: the name {name!r} is not defined")
        return found

    def _shown(self, value: Any, name: str) -> ast.expr:
        """The expression that stands for a value in the source."""
        if isinstance(value, ModuleType):
            module = _MODULES.get(value.__name__)
            if module is not None:
                return _expression(module)
            raise UserKernelError(
                f"{self._where} uses the module {value.__name__}; expected Triton's language"
            )
        inside = language_path(value)
        if inside is not None:
            return _expression(inside)
        if _is_jit(value):
            return _expression(self._sources.add(value))
        if _is_constexpr(value):
            return _expression(self._sources.add_constant(name, value.value))
        if getattr(builtins, name, _MISSING) is value:
            return _expression(name)  # the farm refuses those that it does not know
        raise UserKernelError(
            f"{self._where} uses the global {name} of type {type(value).__name__}; expected a"
            " function of triton.jit, or a constant: wrap it in tl.constexpr"
        )


_MISSING = object()


def language_path(value: Any) -> str | None:
    """The name of one of the language's own functions or types, None for any other value."""
    if _is_dtype(value):
        return f"{TL}.{_TYPE_NAMES.get(str(value), str(value))}"
    home = getattr(value, "__module__", None)
    name = getattr(value, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str):
        return None
    if name in ("cdiv", "next_power_of_2") and not home.startswith(f"{_LANGUAGE}."):
        return f"{TRITON_MODULE}.{name}" if home.partition(".")[0] == "triton" else None
    if home != _LANGUAGE and not home.startswith(f"{_LANGUAGE}."):
        return None
    inside = {"libdevice": LIBDEVICE_MODULE, "math": f"{TL}.math"}
    return f"{inside.get(home.rpartition('.')[2], TL)}.{name}"


_TYPE_NAMES: Mapping[str, str] = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8e4nv",
    "fp8e4b8": "float8e4b8",
    "fp8e4b15": "float8e4b15",
    "fp8e5": "float8e5",
    "fp8e5b16": "float8e5b16",
}
"""Element types whose text is not their name in `tl`."""


def literal_text(value: Any, where: str) -> str:
    """The text of a constant.

    Raises:
        UserKernelError: it has no literal.
    """
    if _is_constexpr(value):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple):
        items = ", ".join(literal_text(item, where) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if _is_dtype(value):
        return str(language_path(value))
    raise UserKernelError(
        f"{where} is a {type(value).__name__}; expected a number, text, None or an element type"
    )


def _is_constexpr(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "constexpr" and kind.__module__.startswith(_LANGUAGE)


def _is_dtype(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "dtype" and kind.__module__.startswith(_LANGUAGE)


def _path(node: ast.expr) -> tuple[str, ...] | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def _expression(text: str) -> ast.expr:
    found = ast.parse(text, mode="eval").body
    assert isinstance(found, ast.expr)
    return found
