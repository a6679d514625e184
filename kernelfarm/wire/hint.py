"""Codec of hints."""

from __future__ import annotations

from kernelfarm.ir.hints import KernelHint
from kernelfarm.v1 import graph_pb2 as pb
from kernelfarm.wire.names import checked_name


def hint_to_proto(hint: KernelHint) -> pb.Hint:
    """The message of a hint."""
    return pb.Hint(name=hint.name, value=hint.value)


def hint_from_proto(message: pb.Hint, where: str) -> KernelHint:
    """The hint of a message; `check_hint` checks its rules.

    Raises:
        MalformedMessageError: the name is too long.
    """
    name = checked_name(message.name, f"{where}: a hint")
    return KernelHint(name, message.value if message.HasField("value") else None)
