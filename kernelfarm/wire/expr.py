"""Integer expressions on the wire: a tree there, a polynomial normal form here.

A hostile tree may be deep, or multiply out to a huge polynomial; both are bounded before the work
is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache, reduce

from kernelfarm.errors import InvalidGraphError, MalformedMessageError
from kernelfarm.ir.atoms import Atom, Monomial
from kernelfarm.ir.symbolic import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    as_expr,
    maximum,
    minimum,
    sum_of,
    symbol,
)
from kernelfarm.ir.work_budget import spend, steps_spent
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire.names import checked_name

MAX_DEPTH = 45
"""Nested calls; protobuf itself stops at 100 nested messages, two for each call."""

MAX_TERMS = 1024
"""Terms of a polynomial; real index expressions have fewer than 20."""

MAX_DEGREE = 64
"""Factors of one term: a tensor has at most 64 extents."""

MAX_MAGNITUDE = 2**63 - 1
"""Every literal and coefficient fits in 64 bits."""

_LARGE_BYTES = 1 << 10
_MAX_REMEMBERED_BYTES = 1 << 18
_MAX_REMEMBERED = 32
_decoded_last: OrderedDict[bytes, tuple[Expr, int]] = OrderedDict()
"""Trees and what they are, with the steps that decoding them took."""

_ADD, _MUL = pb.EXPR_OP_ADD, pb.EXPR_OP_MUL


def expr_to_proto(expr: Expr) -> pb.Expr:
    """The expression as a tree.

    Raises:
        InvalidGraphError: a coefficient does not fit in 64 bits.
    """
    return _encoded(expr)


def exprs_to_proto(exprs: Iterable[Expr]) -> list[pb.Expr]:
    """Several expressions as trees."""
    return [_encoded(expr) for expr in exprs]


def expr_from_proto(message: pb.Expr, where: str) -> Expr:
    """The expression of a tree.

    Raises:
        MalformedMessageError: a form is unset, an operation unknown, a count of operands wrong, or
            the tree is too deep or multiplies out to too many terms.
        InvalidGraphError: a division by a constant that is zero or negative.
    """
    form = message.WhichOneof("form")
    if form == "constant":
        return _constant(message.constant, where)
    if form == "symbol":
        return _symbol(message.symbol, where)
    return _decoded_once(message, where)


def _decoded_once(message: pb.Expr, where: str) -> Expr:
    """Decodes a large tree that a graph repeats, say the shape of every value, once.

    It costs a request as many steps as decoding it again would.
    """
    before = steps_spent()
    if before is None or message.ByteSize() < _LARGE_BYTES:
        return _decoded(message, where, MAX_DEPTH)
    tree = message.SerializeToString(deterministic=True)
    if tree in _decoded_last:
        _decoded_last.move_to_end(tree)
        expr, steps = _decoded_last[tree]
        spend(steps)
        return expr
    expr = _decoded(message, where, MAX_DEPTH)
    if len(tree) <= _MAX_REMEMBERED_BYTES:
        _decoded_last[tree] = expr, (steps_spent() or 0) - before
        if len(_decoded_last) > _MAX_REMEMBERED:
            _decoded_last.popitem(last=False)
    return expr


def exprs_from_proto(messages: Iterable[pb.Expr], where: str) -> tuple[Expr, ...]:
    """Several expressions; see `expr_from_proto`."""
    return tuple(expr_from_proto(message, where) for message in messages)


@lru_cache(maxsize=1 << 14)
def _encoded(expr: Expr) -> pb.Expr:
    """Remembered, since extents and strides repeat; callers copy, they never change it."""
    parts = [_encoded_term(monomial, factor) for monomial, factor in expr.terms]
    if expr.constant or not parts:
        parts.append(_literal(expr.constant))
    return parts[0] if len(parts) == 1 else _call(_ADD, parts)


def _encoded_term(monomial: Monomial, factor: int) -> pb.Expr:
    factors = [_encoded_atom(atom) for atom in monomial]
    if factor != 1:
        factors.insert(0, _literal(factor))
    return factors[0] if len(factors) == 1 else _call(_MUL, factors)


def _encoded_atom(atom: Atom) -> pb.Expr:
    match atom:
        case Symbol(name):
            return pb.Expr(symbol=name)
        case FloorDiv(a, b):
            return _call(pb.EXPR_OP_FLOOR_DIV, [_encoded(a), _encoded(b)])
        case Mod(a, b):
            return _call(pb.EXPR_OP_MOD, [_encoded(a), _encoded(b)])
        case Min(a, b):
            return _call(pb.EXPR_OP_MIN, [_encoded(a), _encoded(b)])
        case Max(a, b):
            return _call(pb.EXPR_OP_MAX, [_encoded(a), _encoded(b)])


def _literal(value: int) -> pb.Expr:
    if abs(value) > MAX_MAGNITUDE:
        raise InvalidGraphError(f"integer {value} in an expression; expected one of 64 bits")
    return pb.Expr(constant=value)


def _call(op: pb.ExprOp.ValueType, operands: list[pb.Expr]) -> pb.Expr:
    return pb.Expr(call=pb.ExprCall(op=op, operands=operands))


def _decoded(message: pb.Expr, where: str, depth: int) -> Expr:
    spend()
    form = message.WhichOneof("form")
    if form == "constant":
        return _constant(message.constant, where)
    if form == "symbol":
        return _symbol(message.symbol, where)
    if form is None:
        raise MalformedMessageError(f"{where}: an expression whose form is not set")
    if depth == 0:
        limit = f"expected at most {MAX_DEPTH} levels"
        raise MalformedMessageError(f"{where}: expression nested too deeply; {limit}")
    operands = [_decoded(operand, where, depth - 1) for operand in message.call.operands]
    return _applied(message.call.op, operands, where)


def _constant(value: int, where: str) -> Expr:
    """The one number of 64 bits whose magnitude has more could not be encoded again."""
    if abs(value) > MAX_MAGNITUDE:
        raise MalformedMessageError(
            f"{where}: integer {value} in an expression; expected one of at most {MAX_MAGNITUDE}"
        )
    return as_expr(value)


def _symbol(name: str, where: str) -> Expr:
    if not name:
        raise MalformedMessageError(f"{where}: a symbol without a name in an expression")
    return symbol(checked_name(name, f"{where}: a symbol"))


def _applied(op: int, operands: list[Expr], where: str) -> Expr:
    if op == _ADD or op in _FOLDS:
        if len(operands) < 2:
            raise MalformedMessageError(
                f"{where}: {_name(op)} of {len(operands)} operands; expected two or more"
            )
        if op == _ADD:  # at once: n partial sums would cost the square of n
            return _bounded(sum_of(operands), where)
        return reduce(lambda a, b: _folded(op, a, b, where), operands)
    if op not in (pb.EXPR_OP_FLOOR_DIV, pb.EXPR_OP_MOD):
        raise MalformedMessageError(f"{where}: expression operation number {op} is unknown")
    if len(operands) != 2:
        raise MalformedMessageError(f"{where}: {_name(op)} of {len(operands)} operands; expected 2")
    top, bottom = operands
    if bottom.is_constant and bottom.constant <= 0:
        raise InvalidGraphError(f"{where}: division of {top} by {bottom}; expected a divisor >= 1")
    return top // bottom if op == pb.EXPR_OP_FLOOR_DIV else top % bottom


_FOLDS: dict[int, Callable[[Expr, Expr], Expr]] = {
    _MUL: lambda a, b: a * b,
    pb.EXPR_OP_MIN: minimum,
    pb.EXPR_OP_MAX: maximum,
}


def _folded(op: int, a: Expr, b: Expr, where: str) -> Expr:
    if op == _MUL:
        _check_product(a, b, where)
    return _bounded(_FOLDS[op](a, b), where)


def _check_product(a: Expr, b: Expr, where: str) -> None:
    """Looks before multiplying: a product of sums grows exponentially with its factors."""
    terms = (len(a.terms) + 1) * (len(b.terms) + 1)
    if terms > MAX_TERMS:
        raise MalformedMessageError(
            f"{where}: an expression of {terms} terms; expected at most {MAX_TERMS}"
        )
    degree = _degree(a) + _degree(b)
    if degree > MAX_DEGREE:
        raise MalformedMessageError(
            f"{where}: a product of {degree} factors; expected at most {MAX_DEGREE}"
        )


def _degree(expr: Expr) -> int:
    return max((len(monomial) for monomial, _ in expr.terms), default=0)


def _bounded(expr: Expr, where: str) -> Expr:
    terms = len(expr.terms)
    if terms > MAX_TERMS:
        raise MalformedMessageError(
            f"{where}: an expression of {terms} terms; expected at most {MAX_TERMS}"
        )
    worst = max((abs(factor) for _, factor in expr.terms), default=0)
    if max(worst, abs(expr.constant)) > MAX_MAGNITUDE:
        raise MalformedMessageError(f"{where}: an expression whose literals exceed 64 bits")
    return expr


def _name(op: int) -> str:
    return pb.ExprOp.Name(op).removeprefix("EXPR_OP_")  # type: ignore[arg-type]  # checked: known
