"""Which elementary functions of a kernel need only the precision of its f16 and bf16 results.

A call may take a narrow form, which errs by less than 2^-16 of its value, if its value
reaches memory only through roundings to f16 or bf16, and if no operation on the way amplifies a
relative error. Products, quotients, roots, selections and sums of numbers of one sign do not.
Beyond a rounding, smooth operations may follow: eager rounds there too, and its rounding is the
larger error. A call keeps full precision if its value reaches a store of another type, a reduction,
a scan, a sort, an index, a comparison, or a sum that may cancel.

A chip's exponential that gives 0 for subnormal results needs no arithmetic around it. It is taken
in sums of exponentials of which the largest is 1, where it makes no difference, and in
`a / (1 + exp(b))`.

On a processor, which has no exponential, `exp` has a narrow form like the others.

Some forms stand for two operations. `1 + erf(x)` and `1 + tanh(x)` cancel for negative x; their
forms do not, so the tail of GELU is more exact than eager's.

A rounded value carries at most `_MAX_ERRORS` such errors: a quarter of a unit in the last place of
f16, 1/32 of one of bf16. So the result is at most half a unit farther from the exact one than the
best result is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from codegen_svc.precision.hidden_errors import NARROW_FLOATS, is_smooth
from codegen_svc.precision.signs import Signs, signs_of
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import (
    Compute,
    Kernel,
    Literal,
    Reduce,
    Statement,
    Store,
    StoreMode,
    operands_of,
)

_OF_CALLS = {"erf": "narrow_erf", "tanh": "narrow_tanh", "expm1": "narrow_expm1"}
_OF_POLYNOMIALS = {"exp": "narrow_polynomial_exp"}
_OF_NESTED_CALLS = {
    ("tanh", "log1p"): "narrow_tanh_log1p",
    ("log1p", "exp"): "narrow_softplus",
}
_OF_SUMS_WITH_ONE = {"erf": "narrow_one_plus_erf", "tanh": "narrow_one_plus_tanh"}
_TITLES = {
    **{form: op for op, form in {**_OF_CALLS, **_OF_POLYNOMIALS}.items()},
    **{form: f"{outer}({inner})" for (outer, inner), form in _OF_NESTED_CALLS.items()},
    **{form: f"1 + {op}" for op, form in _OF_SUMS_WITH_ONE.items()},
    "narrow_exp_share": "exp",
}

_MAX_ERRORS = 8
# Of the functions among them, |x f'(x) / f(x)| is at most 1.
_KEEPS_RELATIVE_ERRORS = frozenset(
    (
        *("neg", "abs", "mul", "div", "reciprocal", "sqrt", "rsqrt", "where", "convert"),
        *("maximum", "minimum", "fmax", "fmin", "tanh", "erf"),
    )
)


_TAKES_LARGEST_ERROR = frozenset(["add", "sub", "where", "maximum", "minimum", "fmax", "fmin"])


@dataclass(frozen=True, slots=True)
class _Flow:
    """Where the values of a kernel go, by the number of a statement.

    `takes_errors`: the statement hides small relative errors of its operands. `hides_errors`: all
    statements that use its value do.
    """

    kernel: Kernel
    uses: Sequence[Sequence[int]]
    takes_errors: Sequence[bool]
    hides_errors: Sequence[bool]


def with_narrow_functions(
    kernel: Kernel, *, has_flushing_exp: bool = False, computes_exp: bool = False
) -> Kernel:
    """The kernel with narrow forms where they are allowed; the same object if that is nowhere.

    `has_flushing_exp`: the chip has an exponential that gives 0 for subnormal results.
    `computes_exp`: it has none. The numbers of statements stay; operations that no statement uses
    any more stay too.
    """
    flow = _flow_of(kernel)
    calls = {**_OF_CALLS, **(_OF_POLYNOMIALS if computes_exp else {})}
    forms: dict[int, Statement] = {}
    for number, call in enumerate(kernel.body):
        if isinstance(call, Compute) and call.dtype is DType.F32:
            forms |= _forms(flow, number, call, calls)
            if has_flushing_exp and number not in forms:
                forms |= _flushing_forms(flow, number, call)
    if not forms:
        return kernel
    body = tuple(forms.get(number, statement) for number, statement in enumerate(kernel.body))
    narrow = replace(kernel, body=body)
    return narrow if _are_errors_few(narrow) else kernel


def narrow_functions(kernel: Kernel) -> tuple[str, ...]:
    """The functions that the narrow forms of a kernel compute (`1 + erf`), sorted."""
    used = {number for statement in kernel.body for number in operands_of(statement)}
    computes = ((n, s) for n, s in enumerate(kernel.body) if isinstance(s, Compute))
    return tuple(sorted({_TITLES[s.op] for n, s in computes if n in used and s.op in _TITLES}))


def _forms(
    flow: _Flow, number: int, call: Compute, calls: Mapping[str, str]
) -> dict[int, Statement]:
    """The forms of a call and of the sums `1 + call`; none if one of its uses needs precision."""
    inner = flow.kernel.body[call.operands[0]]
    form, operands = calls.get(call.op), call.operands
    if isinstance(inner, Compute) and (call.op, inner.op) in _OF_NESTED_CALLS:
        form, operands = _OF_NESTED_CALLS[call.op, inner.op], inner.operands
    sums = [use for use in flow.uses[number] if not flow.takes_errors[use]]
    if form is None or not all(_is_hidden_sum(flow, use, call.op) for use in sums):
        return {}
    sum_forms = {use: Compute(_OF_SUMS_WITH_ONE[call.op], call.operands, DType.F32) for use in sums}
    return {number: Compute(form, operands, DType.F32), **sum_forms}


def _flushing_forms(flow: _Flow, number: int, call: Compute) -> dict[int, Statement]:
    """The form of an exponential, of `a / (1 + exp(b))`, or of a share of a softmax."""
    body = flow.kernel.body
    if call.op == "exp" and _is_at_most_one(flow.kernel, number):
        readers = [body[use] for use in flow.uses[number]]
        is_summed = all(isinstance(s, Reduce) and s.op == "sum" for s in readers)
        return {number: Compute("narrow_exp", call.operands, DType.F32)} if is_summed else {}
    if call.op != "div" or not flow.hides_errors[number]:
        return {}
    over, under = call.operands
    if _is_softmax_sum(flow.kernel, under):
        exp = body[over]
        if isinstance(exp, Compute) and _is_at_most_one(flow.kernel, over):
            return {number: Compute("narrow_exp_share", (*exp.operands, under), DType.F32)}
        return {number: Compute("narrow_share", call.operands, DType.F32)}
    exponent = _exponent_beside_one(body, under)
    if exponent is None:
        return {}
    return {number: Compute("narrow_over_one_plus_exp", (over, exponent), DType.F32)}


def _is_at_most_one(kernel: Kernel, number: int) -> bool:
    """True for exp(x - amax(x)): one of a row is 1."""
    exp = kernel.body[number]
    if not isinstance(exp, Compute) or exp.op != "exp":
        return False
    apart = kernel.body[exp.operands[0]]
    if not isinstance(apart, Compute) or apart.op != "sub":
        return False
    x, top = apart.operands
    guide = kernel.body[top]
    return isinstance(guide, Reduce) and guide.op == "amax" and guide.operand == x


def _is_softmax_sum(kernel: Kernel, number: int) -> bool:
    """True for a sum of exponentials of which the largest is 1: its reciprocal is exact enough."""
    total = kernel.body[number]
    if not isinstance(total, Reduce):
        return False
    if total.op == "softmax_sum":
        return True
    return total.op == "sum" and _is_at_most_one(kernel, total.operand)


def _exponent_beside_one(body: Sequence[Statement], number: int) -> int | None:
    """The number of x if a statement is 1 + exp(x)."""
    total = body[number]
    if not isinstance(total, Compute) or total.op != "add":
        return None
    terms = [body[operand] for operand in total.operands]
    ones = [t for t in terms if isinstance(t, Literal) and t.value == 1]
    exps = [t for t in terms if isinstance(t, Compute) and t.op == "exp"]
    return exps[0].operands[0] if ones and exps else None


def _is_hidden_sum(flow: _Flow, number: int, op: str) -> bool:
    """True if a statement is the sum of 1 and a call of `op` that it uses, with hidden errors."""
    statement = flow.kernel.body[number]
    if not isinstance(statement, Compute) or statement.op != "add" or op not in _OF_SUMS_WITH_ONE:
        return False
    terms = [flow.kernel.body[operand] for operand in statement.operands]
    return flow.hides_errors[number] and any(isinstance(t, Literal) and t.value == 1 for t in terms)


def _flow_of(kernel: Kernel) -> _Flow:
    uses: list[list[int]] = [[] for _ in kernel.body]
    for number, statement in enumerate(kernel.body):
        for operand in operands_of(statement):
            uses[operand].append(number)
    signs = signs_of(kernel)
    takes_errors, takes_rounding = ([False] * len(uses) for _ in range(2))
    for number in reversed(range(len(uses))):
        statement = kernel.body[number]
        rounding = all(takes_rounding[use] for use in uses[number])
        takes_rounding[number] = _takes_rounding(kernel, statement, is_hidden=rounding)
        if isinstance(statement, Compute):
            errors = all(takes_errors[use] for use in uses[number])
            is_narrowing = statement.op == "convert" and statement.dtype in NARROW_FLOATS
            is_kept = _keeps_relative_errors(statement, signs)
            takes_errors[number] = rounding if is_narrowing else is_kept and errors
    hides = [all(takes_errors[use] for use in found) for found in uses]
    return _Flow(kernel, uses, takes_errors, hides)


def _takes_rounding(kernel: Kernel, statement: Statement, *, is_hidden: bool) -> bool:
    """True if it does not matter whether an operand was rounded up or down.

    `is_hidden`: that is so for the statement's own value.
    """
    if isinstance(statement, Store):
        is_narrow = kernel.param(statement.param).dtype in NARROW_FLOATS
        return is_narrow and statement.mode is StoreMode.SET
    return isinstance(statement, Compute) and is_smooth(kernel, statement) and is_hidden


def _keeps_relative_errors(compute: Compute, signs: Sequence[Signs]) -> bool:
    if compute.dtype is not DType.F32:
        return False
    if compute.op in ("add", "sub"):
        first, second = (signs[operand] for operand in compute.operands)
        second = second.negated() if compute.op == "sub" else second
        return first | second is not Signs.ANY
    return compute.op in _KEEPS_RELATIVE_ERRORS


def _are_errors_few(kernel: Kernel) -> bool:
    """True if no value that is rounded carries more than `_MAX_ERRORS`."""
    counts: list[int] = []
    for statement in kernel.body:
        count = 0
        if isinstance(statement, Compute):
            before = [counts[operand] for operand in statement.operands]
            joined = max(before) if statement.op in _TAKES_LARGEST_ERROR else sum(before)
            if joined > _MAX_ERRORS:
                return False
            is_narrow = statement.dtype in NARROW_FLOATS
            count = 0 if is_narrow else joined + (statement.op in _TITLES)
        counts.append(count)
    return True
