"""The rules of one function of a user's kernel: statements, expressions, names, attributes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.bounds import MAX_EXPONENT, MAX_SHIFT, MAX_UNROLLED
from kernelfarm.ir.triton.language import (
    BUILTINS,
    MEMBERS,
    MODULES,
    TL,
    attributes_of,
    why_excluded,
)
from kernelfarm.ir.triton.literals import check_constant, check_literal, static_integer

_RANGES = ("range", "tl.range", "tl.static_range")
_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift,
    ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot)
_COMBINING = frozenset({"associative_scan", "reduce", "map_elementwise"})
"""Functions that take a helper as an argument."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The global names of a source: constants with their literals, and functions."""

    constants: Mapping[str, ast.expr]
    functions: frozenset[str]


def check_function(node: ast.FunctionDef, params: tuple[str, ...], scope: Scope) -> None:
    """Passes a function whose body is in the closed set.

    Raises:
        UserKernelError: names the line, what was seen and what was expected.
    """
    _Checker(node, params, scope).check()


class _Checker:
    """Visits the nodes of one function; `unrolled` multiplies the loops around a statement."""

    def __init__(self, node: ast.FunctionDef, params: tuple[str, ...], scope: Scope) -> None:
        self._node = node
        self._scope = scope
        self._locals = set(params)
        for name in params:
            self._check_target(name, node)
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self._check_target(child.id, child)
                self._locals.add(child.id)

    def check(self) -> None:
        """Runs every rule."""
        self._block(self._node.body, 1)

    def _block(self, body: list[ast.stmt], unrolled: int) -> None:
        for statement in body:
            visit = _STATEMENTS.get(type(statement))
            if visit is None:
                kind = type(statement).__name__
                self._refuse(statement, f"a statement of type {kind}", "one of Triton's language")
            visit(self, statement, unrolled)

    def _assign(self, node: ast.Assign, unrolled: int) -> None:
        for target in node.targets:
            self._target(target)
        self._expression(node.value)

    def _ann_assign(self, node: ast.AnnAssign, unrolled: int) -> None:
        self._target(node.target)
        self._expression(node.annotation)
        if node.value is not None:
            self._expression(node.value)

    def _aug_assign(self, node: ast.AugAssign, unrolled: int) -> None:
        self._target(node.target)
        self._operator(node, node.op, node.value)
        self._expression(node.value)

    def _evaluate(self, node: ast.Expr, unrolled: int) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return  # a docstring
        if not isinstance(node.value, ast.Call):
            self._refuse(node, f"the value {_shown(node.value)} without use", "a call")
        self._expression(node.value)

    def _if(self, node: ast.If, unrolled: int) -> None:
        self._expression(node.test)
        self._block(node.body, unrolled)
        self._block(node.orelse, unrolled)

    def _for(self, node: ast.For, unrolled: int) -> None:
        self._target(node.target)
        call = node.iter
        if node.orelse or not isinstance(call, ast.Call) or _path_text(call.func) not in _RANGES:
            self._refuse(node, f"a loop over {_shown(call)}", "range, tl.range or tl.static_range")
        self._expression(call)
        if _path_text(call.func) == "tl.static_range":
            unrolled *= max(1, self._trips(call))
            if unrolled > MAX_UNROLLED:
                self._refuse(node, f"{unrolled} repetitions unrolled", f"at most {MAX_UNROLLED}")
        self._block(node.body, unrolled)

    def _trips(self, call: ast.Call) -> int:
        """The repetitions of a range of known integers, 1 if they are not known here."""
        known = dict(self._scope.constants)
        found = [static_integer(argument, known) for argument in call.args]
        if not found or any(value is None for value in found):
            return 1
        values = [value for value in found if value is not None]
        if len(values) == 3 and values[2] == 0:
            self._refuse(call, "a range with step 0", "another step")
        return len(range(*values[:3])) if max(map(abs, values)) < 1 << 62 else MAX_UNROLLED + 1

    def _while(self, node: ast.While, unrolled: int) -> None:
        if node.orelse or isinstance(node.test, ast.Constant):
            self._refuse(node, f"while {_shown(node.test)}", "a condition that can change")
        self._expression(node.test)
        self._block(node.body, unrolled)

    def _return(self, node: ast.Return, unrolled: int) -> None:
        if node.value is not None:
            self._expression(node.value)

    def _assert(self, node: ast.Assert, unrolled: int) -> None:
        self._expression(node.test)
        if node.msg is not None:
            self._expression(node.msg)

    def _pass(self, node: ast.Pass, unrolled: int) -> None:
        return

    def _target(self, node: ast.expr) -> None:
        match node:
            case ast.Name():
                return  # checked with all targets
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    self._target(item)
            case _:
                self._refuse(node, f"an assignment to {_shown(node)}", "a name")

    def _check_target(self, name: str, node: ast.AST) -> None:
        taken = MODULES | self._scope.functions | frozenset(self._scope.constants)
        if name in taken or name.startswith("__"):
            self._refuse(node, f"an assignment to {name[:60]!r}", "a name without a meaning here")

    def _expression(self, node: ast.expr | None) -> None:
        if node is None:
            return
        visit = _EXPRESSIONS.get(type(node))
        if visit is None:
            kind = type(node).__name__
            self._refuse(node, f"an expression of type {kind}", "one of Triton's language")
        visit(self, node)

    def _constant(self, node: ast.Constant) -> None:
        try:
            check_constant(node.value)
        except UserKernelError as error:
            raise UserKernelError(f"line {node.lineno}: {error}") from error

    def _name(self, node: ast.Name) -> None:
        if node.id in self._locals or node.id in self._scope.constants:
            return
        if node.id in MODULES:
            self._refuse(node, f"{node.id} as a value", "an attribute of it")
        if node.id in self._scope.functions:
            self._refuse(node, f"the function {node.id[:60]} as a value", "a call of it")
        self._refuse(
            node, f"the name {node.id[:60]!r}", "a parameter, a variable, a constant or a function"
        )

    def _attribute(self, node: ast.Attribute) -> None:
        path = _path(node)
        if path is None or path[0] not in MODULES:
            if node.attr not in MEMBERS:
                self._refuse(node, f"the attribute {node.attr[:60]!r}", "one of Triton's language")
            self._expression(node.value)
            return
        self._check_path(node, path)

    def _check_path(self, node: ast.AST, path: tuple[str, ...]) -> None:
        """Checks a path from a module, as in `tl.math.exp`; members of types may follow."""
        for end in range(1, len(path)):
            allowed = attributes_of(path[:end])
            name = path[end]
            if allowed is None:
                if name not in MEMBERS:
                    self._refuse(node, f"the attribute {name[:60]!r}", "one of Triton's language")
            elif name not in allowed:
                where = ".".join(path[:end])
                reason = why_excluded(path[:end], name)
                because = f" ({reason})" if reason else ""
                self._refuse(
                    node,
                    f"{where}.{name[:60]}{because}",
                    f"a function of {where} that user kernels may use",
                )
        if path == (TL, "math"):
            self._refuse(node, "tl.math as a value", "an attribute of it")

    def _call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name) if name in self._locals:
                self._refuse(node, f"a call of the variable {name[:60]!r}", "a function's name")
            case ast.Name(id=name) if name in BUILTINS or name in self._scope.functions:
                pass
            case ast.Name(id=name):
                self._refuse(
                    node, f"a call of {name[:60]!r}", "a function of the source or of Triton"
                )
            case ast.Attribute() as func:
                self._attribute(func)
            case func:
                self._refuse(node, f"a call of {_shown(func)}", "a function's name")
        takes_helper = isinstance(node.func, ast.Attribute) and node.func.attr in _COMBINING
        for keyword in node.keywords:
            if keyword.arg is None:
                self._refuse(node, "an argument with **", "named arguments")
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            is_helper = isinstance(argument, ast.Name) and argument.id in self._scope.functions
            if not (takes_helper and is_helper):
                self._expression(argument)
        if isinstance(node.func, ast.Name) and node.func.id == "float":
            self._float(node)

    def _float(self, node: ast.Call) -> None:
        is_text = any(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
        if is_text:
            check_literal(node, "the float")

    def _binary(self, node: ast.BinOp) -> None:
        self._operator(node, node.op, node.right)
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and isinstance(side.value, str):
                self._refuse(node, f"arithmetic with the text {_shown(side)}", "numbers")
            self._expression(side)

    def _operator(self, node: ast.AST, operator: ast.operator, right: ast.expr) -> None:
        if not isinstance(operator, _OPERATORS):
            kind = type(operator).__name__
            self._refuse(node, f"the operator {kind}", "one of Triton's language")
        limit = {ast.Pow: MAX_EXPONENT, ast.LShift: MAX_SHIFT}.get(type(operator))
        value = static_integer(right, dict(self._scope.constants))
        if limit is not None and value is not None and not 0 <= value <= limit:
            word = "exponent" if isinstance(operator, ast.Pow) else "shift"
            self._refuse(node, f"the {word} {value}", f"0 to {limit}")
        if limit is not None and any(map(_can_grow, ast.walk(right))):
            self._refuse(node, f"the power or shift by {_shown(right)}", "a plain number")

    def _unary(self, node: ast.UnaryOp) -> None:
        self._expression(node.operand)

    def _boolean(self, node: ast.BoolOp) -> None:
        for value in node.values:
            self._expression(value)

    def _compare(self, node: ast.Compare) -> None:
        for operator in node.ops:
            if not isinstance(operator, _COMPARISONS):
                kind = type(operator).__name__
                self._refuse(node, f"the comparison {kind}", "one of Triton's language")
        for side in (node.left, *node.comparators):
            self._expression(side)

    def _choice(self, node: ast.IfExp) -> None:
        for part in (node.test, node.body, node.orelse):
            self._expression(part)

    def _subscript(self, node: ast.Subscript) -> None:
        self._expression(node.value)
        self._expression(node.slice)

    def _slice(self, node: ast.Slice) -> None:
        for part in (node.lower, node.upper, node.step):
            self._expression(part)

    def _items(self, node: ast.Tuple | ast.List) -> None:
        for item in node.elts:
            self._expression(item)

    def _refuse(self, node: ast.AST, seen: str, expected: str) -> NoReturn:
        raise UserKernelError(f"line {getattr(node, 'lineno', 0)}: {seen}; expected {expected}")


def _can_grow(node: ast.AST) -> bool:
    """True for a power or a shift, whose value may be huge although its operands are small."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift)


def _path(node: ast.expr) -> tuple[str, ...] | None:
    """The names of a chain such as `tl.math.exp`, None for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(names))


def _path_text(node: ast.expr) -> str:
    return ".".join(_path(node) or ())


def _shown(node: ast.AST) -> str:
    return repr(ast.unparse(node)[:60])


_STATEMENTS: dict[type[ast.stmt], Callable[[_Checker, Any, int], None]] = {
    ast.AnnAssign: _Checker._ann_assign,
    ast.Assert: _Checker._assert,
    ast.Assign: _Checker._assign,
    ast.AugAssign: _Checker._aug_assign,
    ast.Expr: _Checker._evaluate,
    ast.For: _Checker._for,
    ast.If: _Checker._if,
    ast.Pass: _Checker._pass,
    ast.Return: _Checker._return,
    ast.While: _Checker._while,
}
_EXPRESSIONS: dict[type[ast.expr], Callable[[_Checker, Any], None]] = {
    ast.Attribute: _Checker._attribute,
    ast.BinOp: _Checker._binary,
    ast.BoolOp: _Checker._boolean,
    ast.Call: _Checker._call,
    ast.Compare: _Checker._compare,
    ast.Constant: _Checker._constant,
    ast.IfExp: _Checker._choice,
    ast.List: _Checker._items,
    ast.Name: _Checker._name,
    ast.Slice: _Checker._slice,
    ast.Subscript: _Checker._subscript,
    ast.Tuple: _Checker._items,
    ast.UnaryOp: _Checker._unary,
}
