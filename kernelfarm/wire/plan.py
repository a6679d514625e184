"""Codec of execution plans."""

from __future__ import annotations

from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import MalformedMessageError, UnsupportedVersionError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.ir.program_ir import (
    ARENA_ALIGNMENT_BYTES,
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    KernelChoice,
    Launch,
    Output,
    Plan,
    Step,
    SymbolSource,
    TensorView,
)
from kernelfarm.v1 import graph_pb2
from kernelfarm.v1 import plan_pb2 as pb
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import (
    expr_from_proto,
    expr_to_proto,
    exprs_from_proto,
    exprs_to_proto,
)
from kernelfarm.wire.names import checked_name

_KINDS = {
    BufferKind.INPUT: pb.BUFFER_KIND_INPUT,
    BufferKind.OUTPUT: pb.BUFFER_KIND_OUTPUT,
    BufferKind.TEMPORARY: pb.BUFFER_KIND_TEMPORARY,
    BufferKind.EXTERN: pb.BUFFER_KIND_EXTERN,
    BufferKind.CONSTANT: pb.BUFFER_KIND_CONSTANT,
}
_KINDS_BACK: dict[int, BufferKind] = {number: kind for kind, number in _KINDS.items()}


def plan_to_proto(plan: Plan) -> pb.Plan:
    """The message of a plan; its kernels have keys if the plan has them.

    Raises:
        InvalidGraphError: an integer has more than 64 bits.
    """
    keys = plan.kernel_keys or (b"",) * len(plan.kernel_names)
    return pb.Plan(
        abi_version=ABI_VERSION,
        target=plan.target,
        symbols=[
            pb.SymbolSource(symbol=s.symbol, input=s.input, axis=s.axis) for s in plan.symbols
        ],
        buffers=[_buffer_to_proto(buffer) for buffer in plan.buffers],
        arena_bytes=expr_to_proto(plan.arena_bytes),
        arena_alignment_bytes=ARENA_ALIGNMENT_BYTES,
        kernels=[
            pb.KernelRef(name=name, key=key)
            for name, key in zip(plan.kernel_names, keys, strict=True)
        ],
        steps=[_step_to_proto(step) for step in plan.steps],
        outputs=[_output_to_proto(output) for output in plan.outputs],
    )


def plan_from_proto(message: pb.Plan) -> Plan:
    """The plan of a message.

    Raises:
        UnsupportedVersionError: this side does not support the contract version.
        MalformedMessageError: a required part is missing or unknown, or an index or a buffer name
            refers to nothing.
        UnsupportedDTypeError: an element type is unknown.
        InvalidGraphError: there is a division by a constant below 1.
    """
    if message.abi_version != ABI_VERSION:
        raise UnsupportedVersionError(
            f"plan has contract version {message.abi_version}; this side speaks {ABI_VERSION}"
        )
    if message.arena_alignment_bytes != ARENA_ALIGNMENT_BYTES:
        raise MalformedMessageError(
            f"plan: arena alignment of {message.arena_alignment_bytes} bytes;"
            f" expected {ARENA_ALIGNMENT_BYTES}"
        )
    plan = Plan(
        target=checked_name(message.target, "plan: a target"),
        symbols=tuple(_symbol_source(source) for source in message.symbols),
        buffers=tuple(_buffer_from_proto(buffer) for buffer in message.buffers),
        arena_bytes=expr_from_proto(message.arena_bytes, "plan, arena"),
        kernel_names=tuple(
            checked_name(kernel.name, "plan: a kernel") for kernel in message.kernels
        ),
        steps=tuple(_step_from_proto(i, step) for i, step in enumerate(message.steps)),
        outputs=tuple(_output_from_proto(i, out) for i, out in enumerate(message.outputs)),
        kernel_keys=_kernel_keys(message),
    )
    _check_references(plan)
    return plan


def _symbol_source(message: pb.SymbolSource) -> SymbolSource:
    if not message.symbol or message.axis < -1:
        raise MalformedMessageError(
            f"plan: symbol {message.symbol!r} comes from axis {message.axis};"
            " expected a name, and an axis of -1 or more"
        )
    name = checked_name(message.symbol, "plan: a symbol")
    return SymbolSource(name, message.input, message.axis)


def _kernel_keys(message: pb.Plan) -> tuple[bytes, ...]:
    keys = tuple(kernel.key for kernel in message.kernels)
    if not any(keys):
        return ()
    for kernel in message.kernels:
        if len(kernel.key) != DIGEST_BYTES:
            raise MalformedMessageError(
                f"plan: key of kernel {kernel.name} has {len(kernel.key)} bytes;"
                f" expected {DIGEST_BYTES}"
            )
    return keys


def _buffer_to_proto(buffer: Buffer) -> pb.Buffer:
    offset = None if buffer.offset_bytes is None else expr_to_proto(buffer.offset_bytes)
    return pb.Buffer(
        name=buffer.name,
        kind=_KINDS[buffer.kind],
        dtype=dtype_to_proto(buffer.dtype),
        size_elems=expr_to_proto(buffer.size_elems),
        position=buffer.position,
        offset_bytes=offset,
        is_apart=buffer.is_apart,
    )


def _buffer_from_proto(message: pb.Buffer) -> Buffer:
    where = f"plan, buffer {checked_name(message.name, 'plan: a buffer')}"
    kind = _KINDS_BACK.get(message.kind)
    if kind is None:
        raise MalformedMessageError(
            f"{where}: kind number {message.kind}; expected one of {sorted(_KINDS_BACK)}"
        )
    has_offset = message.HasField("offset_bytes")
    if has_offset != (kind is BufferKind.TEMPORARY):
        raise MalformedMessageError(
            f"{where}: an offset is {'set' if has_offset else 'missing'}; expected one for"
            " temporaries and only for them"
        )
    if message.is_apart and kind is not BufferKind.TEMPORARY:
        raise MalformedMessageError(
            f"{where}: {kind.value} is apart from the arena; expected it of temporaries only"
        )
    return Buffer(
        name=message.name,
        kind=kind,
        dtype=dtype_from_proto(message.dtype, where),
        size_elems=expr_from_proto(message.size_elems, where),
        position=message.position,
        offset_bytes=expr_from_proto(message.offset_bytes, where) if has_offset else None,
        is_apart=message.is_apart,
    )


def _view_to_proto(view: TensorView | None) -> pb.TensorView:
    if view is None:
        return pb.TensorView()
    return pb.TensorView(
        buffer=view.buffer,
        dtype=dtype_to_proto(view.dtype),
        sizes=exprs_to_proto(view.sizes),
        strides=exprs_to_proto(view.strides),
        offset_elems=expr_to_proto(view.offset_elems),
    )


def _view_from_proto(message: pb.TensorView, where: str) -> TensorView:
    if len(message.sizes) != len(message.strides):
        raise MalformedMessageError(
            f"{where}: {len(message.strides)} strides for {len(message.sizes)} axes;"
            " expected one for each"
        )
    return TensorView(
        buffer=message.buffer,
        dtype=dtype_from_proto(message.dtype, where),
        sizes=exprs_from_proto(message.sizes, where),
        strides=exprs_from_proto(message.strides, where),
        offset_elems=expr_from_proto(message.offset_elems, where),
    )


def _step_to_proto(step: Step) -> pb.Step:
    if isinstance(step, Launch):
        sizes = exprs_to_proto(step.sizes)
        return pb.Step(launch=pb.LaunchStep(kernel=step.kernel, buffers=step.buffers, sizes=sizes))
    if isinstance(step, DrawSeeds):
        return pb.Step(draw_seeds=pb.DrawSeedsStep(buffers=step.buffers))
    call = pb.ExternStep(
        node=step.node,
        op=step.op,
        args=[_view_to_proto(view) for view in step.args],
        results=[_view_to_proto(view) for view in step.results],
        is_contraction=step.is_contraction,
        choices=[
            pb.KernelChoice(kernel=choice.kernel, configuration=choice.configuration)
            for choice in step.choices
        ],
    )
    return pb.Step(extern_call=call)


def _step_from_proto(index: int, message: pb.Step) -> Step:
    where = f"plan, step {index}"
    form = message.WhichOneof("form")
    if form is None:
        raise MalformedMessageError(f"{where}: its form is not set")
    if form == "launch":
        launch = message.launch
        sizes = exprs_from_proto(launch.sizes, where)
        return Launch(launch.kernel, tuple(launch.buffers), sizes)
    if form == "draw_seeds":
        return DrawSeeds(tuple(message.draw_seeds.buffers))
    call = message.extern_call
    return ExternCall(
        node=call.node,
        op=call.op,
        args=tuple(_view_from_proto(view, where) for view in call.args),
        results=tuple(
            _view_from_proto(view, where) if view.buffer else None for view in call.results
        ),
        is_contraction=call.is_contraction,
        choices=tuple(KernelChoice(choice.kernel, choice.configuration) for choice in call.choices),
    )


def _output_to_proto(output: Output) -> pb.Output:
    if output is None:
        return pb.Output(none=graph_pb2.NoneValue())
    if isinstance(output, Expr):
        return pb.Output(integer=expr_to_proto(output))
    return pb.Output(view=_view_to_proto(output))


def _output_from_proto(index: int, message: pb.Output) -> Output:
    where = f"plan, output {index}"
    form = message.WhichOneof("form")
    if form is None:
        raise MalformedMessageError(f"{where}: its form is not set")
    if form == "none":
        return None
    if form == "integer":
        return expr_from_proto(message.integer, where)
    return _view_from_proto(message.view, where)


def _check_references(plan: Plan) -> None:
    names = {buffer.name for buffer in plan.buffers}
    if len(names) != len(plan.buffers) or "" in names:
        raise MalformedMessageError("plan: buffers share a name or have none; expected distinct")
    for index, step in enumerate(plan.steps):
        for name in _buffers_of(step):
            _check_buffer(name, names, f"plan, step {index}")
        for number in _kernels_of(step):
            if number >= len(plan.kernel_names):
                raise MalformedMessageError(
                    f"plan, step {index}: kernel number {number};"
                    f" expected one below {len(plan.kernel_names)}"
                )
    for index, output in enumerate(plan.outputs):
        if isinstance(output, TensorView):
            _check_buffer(output.buffer, names, f"plan, output {index}")


def _buffers_of(step: Step) -> tuple[str, ...]:
    if isinstance(step, Launch | DrawSeeds):
        return step.buffers
    return tuple(view.buffer for view in (*step.args, *step.results) if view is not None)


def _kernels_of(step: Step) -> tuple[int, ...]:
    if isinstance(step, Launch):
        return (step.kernel,)
    choices = step.choices if isinstance(step, ExternCall) else ()
    return tuple(choice.kernel for choice in choices)


def _check_buffer(name: str, known: set[str], where: str) -> None:
    if name not in known:
        raise MalformedMessageError(f"{where}: buffer {name!r} is not among the plan's buffers")
