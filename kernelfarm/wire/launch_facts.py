"""Codec of launch facts and of the guards of launches."""

from __future__ import annotations

from collections.abc import Iterable

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.artifact import (
    MAP_EXTENT,
    MAP_STRIDE,
    MAPS,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    Number,
    TensorMapFacts,
)
from kernelfarm.v1 import artifact_pb2 as pb
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import expr_to_proto, exprs_from_proto, exprs_to_proto

_OPS = {
    GuardOp.EQ: pb.GUARD_OP_EQ,
    GuardOp.NE: pb.GUARD_OP_NE,
    GuardOp.LT: pb.GUARD_OP_LT,
    GuardOp.LE: pb.GUARD_OP_LE,
    GuardOp.GT: pb.GUARD_OP_GT,
    GuardOp.GE: pb.GUARD_OP_GE,
    GuardOp.DIVISIBLE: pb.GUARD_OP_DIVISIBLE,
}
_OPS_BACK: dict[int, GuardOp] = {number: op for op, number in _OPS.items()}
# The grammar's other subjects are for guards of cache entries; a launch does not know them.
_LAUNCH_SUBJECTS = frozenset(subject.value for subject in GuardSubject)
_MAP_WORDS = MAPS | {MAP_EXTENT, MAP_STRIDE}
# CUDA Driver API, cuTensorMapEncodeTiled.
_MAX_RANK, _MAX_BOX, _SWIZZLES = 5, 256, (0, 32, 64, 128)
_MAX_STEP = 8


def launch_facts_to_proto(facts: LaunchFacts) -> pb.LaunchFacts:
    """The message of launch facts."""
    return pb.LaunchFacts(
        symbol=facts.symbol,
        grid=exprs_to_proto(facts.grid),
        num_warps=facts.num_warps,
        warp_size=facts.warp_size,
        shared_bytes=facts.shared_bytes,
        registers=facts.registers,
        spills=facts.spills,
        xblock_elems=facts.xblock_elems,
        rblock_elems=facts.rblock_elems,
        local_bytes=facts.local_bytes,
        arguments=facts.arguments,
        extras=dict(facts.extras),
        tensor_maps=[_map_to_proto(made) for made in facts.tensor_maps],
        programmatic_launch=facts.programmatic_launch,
    )


def _map_to_proto(made: TensorMapFacts) -> pb.TensorMap:
    message = pb.TensorMap(
        buffer=made.buffer,
        dtype=dtype_to_proto(made.dtype),
        box=made.box,
        swizzle_bytes=made.swizzle_bytes,
        steps=made.steps,
    )
    if not made.varies():
        bound = made.at({})
        message.extents.extend(bound.extents)
        message.strides_bytes.extend(bound.strides_bytes)
        message.offset_bytes = bound.offset_bytes
        return message
    message.varying_extents.extend(exprs_to_proto(map(as_expr, made.extents)))
    message.varying_strides_bytes.extend(exprs_to_proto(map(as_expr, made.strides_bytes)))
    message.varying_offset_bytes.CopyFrom(expr_to_proto(as_expr(made.offset_bytes)))
    return message


def _map_from_proto(index: int, message: pb.TensorMap, buffers: int) -> TensorMapFacts:
    where = f"launch facts, tensor map {index}"
    extents: tuple[Number, ...] = tuple(message.extents)
    strides: tuple[Number, ...] = tuple(message.strides_bytes)
    offset: Number = message.offset_bytes
    if max(len(message.varying_extents), len(message.varying_strides_bytes)) > _MAX_RANK:
        raise MalformedMessageError(
            f"{where}: {len(message.varying_extents)} extents and"
            f" {len(message.varying_strides_bytes)} strides; expected at most {_MAX_RANK} of each"
        )
    if message.varying_extents:
        extents = _numbers(message.varying_extents, where)
        strides = _numbers(message.varying_strides_bytes, where)
        (offset,) = _numbers([message.varying_offset_bytes], where)
    dtype, box = dtype_from_proto(message.dtype, where), tuple(message.box)
    swizzle, steps = message.swizzle_bytes, tuple(message.steps)
    made = TensorMapFacts(message.buffer, dtype, extents, strides, box, swizzle, offset, steps)
    rank = len(extents)
    has_ranks = (len(strides), len(box)) == (rank - 1, rank) and len(steps) in (0, rank)
    has_steps = has_ranks and all(0 < step <= _MAX_STEP for step in steps)
    has_box = has_steps and all(0 < span <= _MAX_BOX for span in (*box, *made.spans()))
    has_box = has_box and swizzle in _SWIZZLES
    if made.buffer >= buffers or not 0 < rank <= _MAX_RANK or not has_ranks or not has_box:
        raise MalformedMessageError(
            f"{where}: {made}; expected a buffer below {buffers}, 1 to {_MAX_RANK} extents, a"
            f" stride less, a box of 1 to {_MAX_BOX} elements along each axis by steps of 1 to"
            f" {_MAX_STEP}, if there are steps, and a swizzle of one of {_SWIZZLES}"
        )
    if not made.varies():
        made.at({})
    return made


def _numbers(messages: Iterable[graph_pb2.Expr], where: str) -> tuple[Number, ...]:
    found = exprs_from_proto(messages, where)
    return tuple(expr.constant if expr.is_constant else expr for expr in found)


def launch_facts_from_proto(message: pb.LaunchFacts) -> LaunchFacts:
    """The launch facts of a message; extras are sorted by name.

    Raises:
        MalformedMessageError: there is no symbol, the grid has more than three axes, or a tensor
            map has other words among the arguments or cannot be made.
        InvalidGraphError: the grid has a division by a constant below 1.
    """
    if not message.symbol or len(message.grid) > 3:
        raise MalformedMessageError(
            f"launch facts: symbol {message.symbol!r} with {len(message.grid)} grid axes;"
            " expected a symbol and at most 3 axes"
        )
    buffers = sum(word == "buffer" for word in message.arguments)
    maps = tuple(_map_from_proto(i, m, buffers) for i, m in enumerate(message.tensor_maps))
    stated = tuple(word for word in message.arguments if word in _MAP_WORDS)
    if stated != tuple(word for made in maps for word in made.arguments()):
        raise MalformedMessageError(
            f"launch facts: arguments {stated} for {len(maps)} tensor maps; expected each with its"
            " extents and strides"
        )
    return LaunchFacts(
        symbol=message.symbol,
        grid=exprs_from_proto(message.grid, "launch facts, grid"),
        num_warps=message.num_warps,
        warp_size=message.warp_size,
        shared_bytes=message.shared_bytes,
        registers=message.registers,
        spills=message.spills,
        xblock_elems=message.xblock_elems,
        rblock_elems=message.rblock_elems,
        local_bytes=message.local_bytes,
        arguments=tuple(message.arguments),
        extras=tuple(sorted(message.extras.items())),
        tensor_maps=maps,
        programmatic_launch=message.programmatic_launch,
    )


def guard_op_to_proto(op: GuardOp) -> pb.GuardOp.ValueType:
    """The number of a comparison in messages."""
    return _OPS[op]


def guard_op_from_proto(number: int) -> GuardOp | None:
    """The comparison of a number in a message, None if there is none."""
    return _OPS_BACK.get(number)


def guard_to_proto(atoms: tuple[GuardAtom, ...]) -> pb.Guard:
    """The message of a guard."""
    return pb.Guard(atoms=[_atom_to_proto(atom) for atom in atoms])


def guard_from_proto(message: pb.Guard) -> tuple[GuardAtom, ...]:
    """The conditions of a guard; an empty guard always holds.

    Raises:
        MalformedMessageError: a subject or comparison is unset or unknown, or a divisor is below 1.
    """
    return tuple(_atom_from_proto(i, atom) for i, atom in enumerate(message.atoms))


def _atom_to_proto(atom: GuardAtom) -> pb.GuardAtom:
    message = pb.GuardAtom(op=_OPS[atom.op], operand=atom.operand)
    if atom.subject is GuardSubject.SYMBOL:
        message.symbol = str(atom.name)
    elif atom.subject is GuardSubject.PARAM_ADDRESS:
        message.param_address = int(atom.name)
    else:
        message.param_extent = int(atom.name)
    return message


def _atom_from_proto(index: int, message: pb.GuardAtom) -> GuardAtom:
    where = f"guard atom {index}"
    form = message.WhichOneof("subject")
    op = _OPS_BACK.get(message.op)
    if form not in _LAUNCH_SUBJECTS or op is None:
        raise MalformedMessageError(
            f"{where}: subject {form or 'not set'}, comparison number {message.op};"
            f" expected a subject and one of {sorted(_OPS_BACK)}"
        )
    if op is GuardOp.DIVISIBLE and message.operand < 1:
        raise MalformedMessageError(f"{where}: divisor {message.operand}; expected 1 or more")
    name: str | int = getattr(message, form)
    return GuardAtom(GuardSubject(form), name, op, message.operand)
