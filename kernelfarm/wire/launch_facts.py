"""Codec of launch facts and of the guards of launches."""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import (
    MAP_EXTENT,
    MAP_STRIDE,
    OFFSET_TENSOR_MAP,
    TENSOR_MAP,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    TensorMapFacts,
)
from kernelfarm.v1 import artifact_pb2 as pb
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import exprs_from_proto, exprs_to_proto

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
_MAP_WORDS = frozenset((TENSOR_MAP, OFFSET_TENSOR_MAP, MAP_EXTENT, MAP_STRIDE))
# CUDA Driver API, cuTensorMapEncodeTiled; a kernel's arguments have extents of 32 bits.
_MAX_RANK, _MAX_EXTENT, _MAX_BOX, _SWIZZLES = 5, (1 << 31) - 1, 256, (0, 32, 64, 128)


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
    )


def _map_to_proto(made: TensorMapFacts) -> pb.TensorMap:
    return pb.TensorMap(
        buffer=made.buffer,
        dtype=dtype_to_proto(made.dtype),
        extents=made.extents,
        strides_bytes=made.strides_bytes,
        box=made.box,
        swizzle_bytes=made.swizzle_bytes,
        offset_bytes=made.offset_bytes,
    )


def _map_from_proto(index: int, message: pb.TensorMap, buffers: int) -> TensorMapFacts:
    where = f"launch facts, tensor map {index}"
    made = TensorMapFacts(
        message.buffer,
        dtype_from_proto(message.dtype, where),
        tuple(message.extents),
        tuple(message.strides_bytes),
        tuple(message.box),
        message.swizzle_bytes,
        message.offset_bytes,
    )
    rank = len(made.extents)
    has_ranks = (len(made.strides_bytes), len(made.box)) == (rank - 1, rank)
    has_sizes = all(0 < e <= _MAX_EXTENT for e in made.extents) and all(
        0 < side <= _MAX_BOX for side in made.box
    )
    if made.buffer >= buffers or not 0 < rank <= _MAX_RANK or not has_ranks or not has_sizes:
        raise MalformedMessageError(
            f"{where}: {made}; expected a buffer below {buffers}, 1 to {_MAX_RANK} extents of 1 to"
            f" {_MAX_EXTENT}, a stride less, and a box of 1 to {_MAX_BOX} along each axis"
        )
    steps = (*made.strides_bytes, made.offset_bytes)
    if made.swizzle_bytes not in _SWIZZLES or any(step % 16 for step in steps):
        raise MalformedMessageError(
            f"{where}: strides {made.strides_bytes}, offset {made.offset_bytes}, swizzle"
            f" {made.swizzle_bytes}; expected multiples of 16 bytes, and one of {_SWIZZLES}"
        )
    return made


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
