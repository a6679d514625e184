"""Codec of users' kernels."""

from __future__ import annotations

from kernelfarm.errors import MalformedMessageError
from kernelfarm.internal.v1 import user_kernels_pb2 as pb
from kernelfarm.ir.triton.bounds import MAX_PARAMS, MAX_SOURCE_BYTES
from kernelfarm.ir.triton.check_kernel import OPTIONS
from kernelfarm.ir.triton.node import value_of_arg
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar, UserKernel, UserParam
from kernelfarm.ir.work_budget import spend
from kernelfarm.wire.argument import argument_from_proto, argument_to_proto
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.names import checked_name

_CHARS_A_STEP = 32
"""Characters of a source for one step of the work budget: a node of its syntax tree has about as
many."""


def user_kernel_to_proto(kernel: UserKernel) -> pb.UserKernel:
    """The message of a kernel, without its name.

    Raises:
        InvalidGraphError: an integer has more than 64 bits.
    """
    return pb.UserKernel(
        source=kernel.source,
        entry=kernel.entry,
        params=[_param_to_proto(param) for param in kernel.params],
        options=[pb.UserOption(name=name, value=value) for name, value in kernel.options],
        template=kernel.template,
    )


def user_kernel_from_proto(name: str, message: pb.UserKernel) -> UserKernel:
    """The kernel of a message; `check_user_kernel` checks its rules.

    Raises:
        MalformedMessageError: a part is missing, or there are too many.
        UnsupportedDTypeError: an element type is unknown.
    """
    where = f"user kernel {checked_name(message.entry, 'a function')}"
    spend(len(message.source) // _CHARS_A_STEP)
    if len(message.source) > MAX_SOURCE_BYTES:
        raise MalformedMessageError(
            f"{where}: a source of {len(message.source)} characters; expected at most"
            f" {MAX_SOURCE_BYTES}"
        )
    if len(message.params) > MAX_PARAMS or len(message.options) > len(OPTIONS):
        raise MalformedMessageError(
            f"{where}: {len(message.params)} parameters and {len(message.options)} options;"
            f" expected at most {MAX_PARAMS} and {len(OPTIONS)}"
        )
    return UserKernel(
        name=name,
        source=message.source,
        entry=message.entry,
        params=tuple(_param_from_proto(param, where) for param in message.params),
        options=tuple(
            (checked_name(option.name, f"{where}: an option"), option.value)
            for option in message.options
        ),
        template=message.template,
    )


def _param_to_proto(param: UserParam) -> pb.UserParam:
    match param:
        case Pointer(name, dtype):
            return pb.UserParam(name=name, pointer=dtype_to_proto(dtype))
        case Scalar(name, dtype, divisor):
            scalar = pb.UserScalar(dtype=dtype_to_proto(dtype), divisor=divisor)
            return pb.UserParam(name=name, scalar=scalar)
        case FixedParam(name, value):
            return pb.UserParam(name=name, value=argument_to_proto(value))


def _param_from_proto(message: pb.UserParam, where: str) -> UserParam:
    name = checked_name(message.name, f"{where}: a parameter")
    where = f"{where}, parameter {name}"
    form = message.WhichOneof("form")
    if form == "pointer":
        return Pointer(name, dtype_from_proto(message.pointer, where))
    if form == "scalar":
        scalar = message.scalar
        return Scalar(name, dtype_from_proto(scalar.dtype, where), scalar.divisor)
    if form == "value":
        return FixedParam(name, value_of_arg(argument_from_proto(message.value, where)))
    raise MalformedMessageError(f"{where}: its form is not set")
