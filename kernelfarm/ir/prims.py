"""The closed set of Prims, and the scalar operations that loop kernels may use.

Prims have value semantics: no strides, no implicit broadcast, no implicit promotion. All
elementwise operands of a prim have one shape and, except for the condition of `where`, one element
type.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kernelfarm.dtypes import DType


class PrimKind(enum.Enum):
    """The groups of prims; all prims of a group are lowered in one way."""

    ELEMENTWISE = "elementwise"
    PREDICATE = "predicate"
    CREATE = "create"
    VIEW = "view"
    STRUCTURAL = "structural"
    REDUCE = "reduce"
    SCAN = "scan"
    SORT = "sort"
    INDEX = "index"
    SCATTER = "scatter"
    RANDOM = "random"
    EXTERN = "extern"


@dataclass(frozen=True, slots=True)
class Prim:
    """One prim.

    `arity` is the number of tensor operands, None for any number; `attrs` are the names of its
    attributes in order, `optional` further ones that a node may have. ELEMENTWISE prims keep the
    operands' element type, PREDICATE prims give bool.
    """

    name: str
    kind: PrimKind
    arity: int | None
    attrs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def _prims(kind: PrimKind, arity: int, names: str) -> list[Prim]:
    return [Prim(name, kind, arity) for name in names.split()]


SCAN_OPS = (
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "cummax_index",
    "cummin_index",
    "logcumsumexp",
)
"""Running reductions, as prims and in loop kernels."""

SCATTER_MODES = ("set", "add", "mul", "min", "max")
"""How an update changes an element."""

_E, _P = PrimKind.ELEMENTWISE, PrimKind.PREDICATE

_TABLE: tuple[Prim, ...] = (
    *_prims(
        _E,
        1,
        "neg abs sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin"
        " acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid floor ceil trunc round_even"
        " bitwise_not",
    ),
    *_prims(
        _E,
        2,
        "add sub mul div floor_div trunc_div mod_floor fmod pow atan2 maximum minimum fmax fmin"
        " copysign bit_and bit_or bit_xor shl shr_arith philox",
    ),
    # philox(seed, position), of i64: two of the words that Philox 4x32-10 gives for this key and
    # counter (`kernelfarm.ir.philox`); the first is the low half.
    *_prims(_P, 1, "isnan isinf isfinite signbit logical_not"),
    *_prims(_P, 2, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    # where(condition: bool, if_true, if_false)
    Prim("where", _E, 3),
    # convert(x), dtype: float to integer truncates, anything to bool is `!= 0`.
    # convert(x), dtype; is_cast: the program asks for the rounding, no operator implies it
    Prim("convert", _E, 1, ("dtype",), ("is_cast",)),
    # full(), shape, value (int, float or bool; an Expr of size symbols if the value is a size, as
    # in a mean over a symbolic axis), dtype
    Prim("full", PrimKind.CREATE, 0, ("dtype", "shape", "value")),
    # iota(), length: 0, 1, 2, ... of an integer dtype, rank 1
    Prim("iota", PrimKind.CREATE, 0, ("dtype", "length")),
    Prim("reshape", PrimKind.VIEW, 1, ("shape",)),
    # permute(x), dims: result axis k is operand axis dims[k]
    Prim("permute", PrimKind.VIEW, 1, ("dims",)),
    # broadcast_in_dim(x), shape, dims: operand axis k becomes result axis dims[k];
    # extents equal or 1
    Prim("broadcast_in_dim", PrimKind.VIEW, 1, ("dims", "shape")),
    # slice(x), starts, limits, steps: one each for every axis,
    # 0 <= start <= limit <= extent, step >= 1
    Prim("slice", PrimKind.VIEW, 1, ("limits", "starts", "steps")),
    Prim("flip", PrimKind.VIEW, 1, ("dims",)),
    # window(x), dims (rising), and for each of them sizes, strides, dilations (all >= 1): axis
    # dims[k] becomes the positions of a sliding window, and the window's own axes come last.
    # Element (..., o, ..., t) is x at o*stride + t*dilation; windows that do not fit are left out.
    Prim("window", PrimKind.VIEW, 1, ("dilations", "dims", "sizes", "strides")),
    # cat(x, y, ...), dim
    Prim("cat", PrimKind.STRUCTURAL, None, ("dim",)),
    # pad(x), low, high (one each for every axis, >= 0), value
    Prim("pad", PrimKind.STRUCTURAL, 1, ("high", "low", "value")),
    # Reductions drop the reduced axes. `dims` sorted.
    # argmax/argmin: i64, flat over the reduced axes.
    *(
        Prim(name, PrimKind.REDUCE, 1, ("dims",))
        for name in ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")
    ),
    # Scans keep the shape, are inclusive, and take numbers: what a reduction over the elements up
    # to this one would give. NaN stays. cummax_index and cummin_index: i64, the last hit so far.
    *(Prim(name, PrimKind.SCAN, 1, ("dim",)) for name in SCAN_OPS),
    # argsort(x), dim, descending: positions (i64) along an axis in the order of the elements there.
    # Equal ones keep their order; NaN is above every number. The sorted elements themselves are
    # gather_along(x, argsort(x)).
    Prim("argsort", PrimKind.SORT, 1, ("descending", "dim")),
    # take(x, index), dim: index (i32/i64, any shape) replaces axis dim: result shape is
    # x.shape[:dim] + index.shape + x.shape[dim+1:]; negative indices wrap, others are checked.
    Prim("take", PrimKind.INDEX, 2, ("dim",)),
    # gather_nd(x, i0, i1, ...), dims: indices of one shape S replace the axes `dims` of x;
    # the result is S + the remaining axes of x in order.
    Prim("gather_nd", PrimKind.INDEX, None, ("dims",)),
    # gather_along(x, index), dim: torch.gather
    Prim("gather_along", PrimKind.INDEX, 2, ("dim",)),
    # scatter(x, i0, i1, ..., updates), dims, mode: x with updates at indices, the inverse of
    # gather_nd: indices of one shape S replace the axes `dims` of x (each checked as there), the
    # updates have shape S + the remaining axes. mode: set (the last in row-major order wins), add,
    # mul, min, max; modes but set want a type that arithmetic is done in.
    Prim("scatter", PrimKind.SCATTER, None, ("dims", "mode")),
    # seed(), index: 64 random bits (i64, no axes) that the client's framework draws anew at each
    # run, for each index. Equal indices are one seed: the prim is a function like the others.
    Prim("seed", PrimKind.RANDOM, 0, ("index",)),
    # extern(x, y, ...), node, op: captured node number `node` run by the client's framework
    # on these tensors. Results as in the node's types, whose strides bind. A convolution that lacks
    # its last tensor runs without its bias. `scale` is the factor of attention's scores, if it has
    # no dropout; if it `is_causal`, query number i sees the keys up to number i. `is_unscaled`
    # states that a sum of a product and a tensor scales neither, which its tensors do not show.
    # `window` has the strides, padding and dilations of both axes of a convolution of images that
    # is not transposed, and the number of its groups. `length` is the number of keys of attention
    # that a template kernel reads in pages. `adjacent` has, for each tensor of an operator that
    # takes no other layout, the axis whose elements are adjacent in memory. With `kernel`
    # (`kernelfarm.ir.triton.node`), the node is a Triton kernel of the user: the farm compiles it,
    # and the client launches it.
    Prim(
        "extern",
        PrimKind.EXTERN,
        None,
        ("is_contraction", "node", "op"),
        ("adjacent", "is_causal", "is_unscaled", "kernel", "length", "scale", "window"),
    ),
)

PRIMS: dict[str, Prim] = {prim.name: prim for prim in _TABLE}
"""Every prim by name."""

CLIENT_OPS: frozenset[str] = frozenset(
    prim.name for prim in _TABLE if prim.kind in (PrimKind.RANDOM, PrimKind.EXTERN)
)
"""Prims whose results the client's framework makes: no kernel computes them."""

_FUNCTION_WORDS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh"
    " atanh erf erfc sigmoid pow atan2 philox"
)
FUNCTION_OPS = frozenset(_FUNCTION_WORDS.split())
"""Operations that take many instructions for an element."""

SCALAR_OPS: frozenset[str] = frozenset(
    prim.name for prim in _TABLE if prim.kind in (PrimKind.ELEMENTWISE, PrimKind.PREDICATE)
)
"""Operations that a loop kernel's Compute may name."""

BOOL_RESULTS: frozenset[str] = frozenset(p.name for p in _TABLE if p.kind is PrimKind.PREDICATE)


def scalar_result_dtype(op: str, operand: DType) -> DType:
    """Element type of a scalar operation's result, `convert` apart.

    `operand` is the last operand's.
    """
    return DType.BOOL if op in BOOL_RESULTS else operand
