"""Codec of launch facts and of the guards of launches."""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject, LaunchFacts
from kernelfarm.v1 import artifact_pb2 as pb
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
    )


def launch_facts_from_proto(message: pb.LaunchFacts) -> LaunchFacts:
    """The launch facts of a message; extras are sorted by name.

    Raises:
        MalformedMessageError: there is no symbol, or the grid has more than three axes.
        InvalidGraphError: the grid has a division by a constant below 1.
    """
    if not message.symbol or len(message.grid) > 3:
        raise MalformedMessageError(
            f"launch facts: symbol {message.symbol!r} with {len(message.grid)} grid axes;"
            " expected a symbol and at most 3 axes"
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
