"""Rules of programs: of the plan, its kernels, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError, VerificationError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Access, Kernel, Param
from kernelfarm.ir.program_ir import (
    Buffer,
    BufferKind,
    DrawSeeds,
    ExternCall,
    Launch,
    Plan,
    Program,
    TensorView,
    updated_inputs,
)
from kernelfarm.ir.triton.check_kernel import check_user_kernel
from kernelfarm.ir.triton.user_kernel import GRID_SIZES, Pointer, UserKernel
from kernelfarm.ir.verify.arena import check_arena
from kernelfarm.ir.verify.kernel import verify_kernel
from kernelfarm.ir.verify.stores import check_stores_are_apart

_READ_ONLY = (BufferKind.INPUT, BufferKind.CONSTANT)
_OF_THE_FRAMEWORK = (*_READ_ONLY, BufferKind.EXTERN)
"""Buffers that may have element types in which no kernel computes."""


def verify_program(program: Program) -> None:
    """Checks that a program's kernels are well formed, and that its plan launches them correctly.

    Raises:
        VerificationError: the first broken rule.
    """
    for kernel in program.kernels:
        verify_kernel(kernel)
    for user_kernel in program.user_kernels:
        _check_user_kernel(user_kernel)
    for rule in _RULES:
        rule(program)


def _check_user_kernel(kernel: UserKernel) -> None:
    try:
        check_user_kernel(kernel)
    except UserKernelError as error:
        raise VerificationError(str(error)) from error


def _kernels_have_their_names(program: Program) -> None:
    names = tuple(kernel.name for kernel in program.all_kernels)
    if names != program.plan.kernel_names:
        raise VerificationError(f"plan names kernels {program.plan.kernel_names}; expected {names}")
    if len(set(names)) != len(names):
        raise VerificationError(f"plan: kernels {names}; expected distinct names")


def _buffers_are_well_formed(program: Program) -> None:
    plan = program.plan
    names = [buffer.name for buffer in plan.buffers]
    if len(set(names)) != len(names):
        raise VerificationError(f"plan: buffers {', '.join(names)}; expected distinct names")
    for buffer in plan.buffers:
        is_temporary = buffer.kind is BufferKind.TEMPORARY
        if is_temporary != (buffer.offset_bytes is not None):
            raise VerificationError(
                f"plan, buffer {buffer.name}: offset {buffer.offset_bytes}; expected one for"
                " temporaries and only for them"
            )
        if buffer.is_apart and not is_temporary:
            raise VerificationError(
                f"plan, buffer {buffer.name}: apart from the arena; expected it of temporaries only"
            )
        if buffer.dtype.is_opaque and buffer.kind not in _OF_THE_FRAMEWORK:
            raise VerificationError(
                f"plan, buffer {buffer.name} of {buffer.dtype.value}; expected it among inputs,"
                " constants or results of extern steps"
            )


def _symbols_are_known(program: Program) -> None:
    plan = program.plan
    known = frozenset(source.symbol for source in plan.symbols)
    for what, expr in _exprs_of(plan):
        unknown = sorted(expr.symbols - known)
        if unknown:
            names = ", ".join(sorted(known)) or "none"
            raise VerificationError(
                f"plan, {what}: unknown symbol {unknown[0]}; expected one of: {names}"
            )


def _exprs_of(plan: Plan) -> Iterable[tuple[str, Expr]]:
    yield "arena", plan.arena_bytes
    for buffer in plan.buffers:
        yield f"buffer {buffer.name}", buffer.size_elems
        if buffer.offset_bytes is not None:
            yield f"buffer {buffer.name}", buffer.offset_bytes
    for index, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            yield from ((f"step {index}", size) for size in step.sizes)
        elif isinstance(step, ExternCall):
            for view in (*step.args, *step.results):
                yield from _view_exprs(f"step {index}", view)
    for index, output in enumerate(plan.outputs):
        if isinstance(output, Expr):
            yield f"output {index}", output
        else:
            yield from _view_exprs(f"output {index}", output)


def _view_exprs(what: str, view: TensorView | None) -> Iterable[tuple[str, Expr]]:
    if view is not None:
        yield from ((what, expr) for expr in (*view.sizes, *view.strides, view.offset_elems))


def _steps_fit(program: Program) -> None:
    walk = _Walk(program)
    for index, step in enumerate(program.plan.steps):
        where = f"plan, step {index}"
        if isinstance(step, Launch):
            walk.check_launch(step, where)
        elif isinstance(step, DrawSeeds):
            walk.check_draw(step, where)
        else:
            walk.check_extern(step, where)
    if sum(isinstance(step, DrawSeeds) for step in program.plan.steps) > 1:
        raise VerificationError("plan: several steps draw seeds; expected one for all of them")
    for index, output in enumerate(program.plan.outputs):
        if isinstance(output, TensorView):
            walk.check_read(output.buffer, f"plan, output {index}")
    for buffer in program.plan.buffers:
        if buffer.kind is BufferKind.OUTPUT:
            walk.check_read(buffer.name, "plan, outputs")


class _Walk:
    """Checks the steps in order, with the buffers that have been written."""

    def __init__(self, program: Program) -> None:
        self.kernels = program.kernels
        self.user_kernels = program.user_kernels
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.plan.buffers}
        self.updated = updated_inputs(program.plan)
        self.read: set[str] = set()
        # A buffer without elements needs no writer.
        self.written = {
            b.name for b in program.plan.buffers if b.kind in _READ_ONLY or b.size_elems == 0
        }

    def check_launch(self, step: Launch, where: str) -> None:
        first = len(self.kernels)
        if first <= step.kernel < first + len(self.user_kernels):
            self._check_template(step, self.user_kernels[step.kernel - first], where)
            return
        if not 0 <= step.kernel < len(self.kernels):
            raise VerificationError(
                f"{where}: kernel {step.kernel}; expected one below {len(self.kernels)}"
            )
        kernel = self.kernels[step.kernel]
        where = f"{where} ({kernel.name})"
        seen = (len(step.buffers), len(step.sizes))
        expected = (len(kernel.params), len(kernel.sizes))
        if seen != expected:
            raise VerificationError(
                f"{where}: {seen[0]} buffers and {seen[1]} sizes; expected {expected[0]} and"
                f" {expected[1]}"
            )
        self._check_arguments(step, kernel, where)

    def _check_template(self, step: Launch, kernel: UserKernel, where: str) -> None:
        """Checks a launch of a kernel that does not say what it writes: buffers without content."""
        where = f"{where} ({kernel.name})"
        seen = (len(step.buffers), len(step.sizes))
        expected = (len(kernel.pointers), len(kernel.scalars) + GRID_SIZES)
        if seen != expected:
            raise VerificationError(
                f"{where}: {seen[0]} buffers and {seen[1]} sizes; expected {expected[0]} and"
                f" {expected[1]}"
            )
        written = set(step.buffers) - self.written
        for name, pointer in zip(step.buffers, kernel.pointers, strict=True):
            buffer = self._passed(name, pointer, where)
            if name not in written:
                self.check_read(name, where)
                continue
            self._check_writable(buffer, where)
            if step.buffers.count(name) > 1:
                raise VerificationError(
                    f"{where}: {name} is written and passed twice; expected distinct buffers"
                )
        self.written |= written

    def _check_arguments(self, step: Launch, kernel: Kernel, where: str) -> None:
        written = set()
        for name, param in zip(step.buffers, kernel.params, strict=True):
            buffer = self._passed(name, param, where)
            if param.access is not Access.WRITE:
                self.check_read(name, where)
            if param.access is not Access.READ:
                self._check_writable(buffer, where)
                written.add(name)
        for name in sorted(written):
            if step.buffers.count(name) > 1:
                raise VerificationError(
                    f"{where}: {name} is written and passed twice; expected distinct buffers"
                )
        self._check_unread(step, kernel, where)
        self.written |= written

    def _passed(self, name: str, param: Param | Pointer, where: str) -> Buffer:
        """The buffer that a launch passes for a parameter, whose type it must have."""
        buffer = self._buffer(name, where)
        if buffer.dtype is not param.dtype:
            raise VerificationError(
                f"{where}: {name} of {buffer.dtype.value} as {param.name};"
                f" expected {param.dtype.value}"
            )
        return buffer

    def _check_unread(self, step: Launch, kernel: Kernel, where: str) -> None:
        for name, param in zip(step.buffers, kernel.params, strict=True):
            if param.access is Access.WRITE and name in self.read and name not in self.updated:
                raise VerificationError(
                    f"{where}: writes {name}, which an earlier step has read; expected all slices"
                    " of a value before its readers"
                )

    def check_extern(self, step: ExternCall, where: str) -> None:
        where = f"{where} ({step.op})"
        first, count = len(self.kernels), len(self.user_kernels)
        for choice in step.choices:
            if not first <= choice.kernel < first + count:
                raise VerificationError(
                    f"{where}: kernel {choice.kernel}; expected one of the {count} kernels of"
                    f" users, which begin at {first}"
                )
        for view in step.args:
            self._check_view(view, where)
            self.check_read(view.buffer, where)
        for result in step.results:
            if result is not None:
                self._check_view(result, where)
                self._check_writable(self._buffer(result.buffer, where), where)
                self.written.add(result.buffer)

    def check_draw(self, step: DrawSeeds, where: str) -> None:
        where = f"{where} (draw seeds)"
        if len(set(step.buffers)) != len(step.buffers) or not step.buffers:
            raise VerificationError(f"{where}: buffers {step.buffers}; expected distinct ones")
        for name in step.buffers:
            buffer = self._buffer(name, where)
            is_seed = buffer.kind is BufferKind.EXTERN and buffer.dtype is DType.I64
            if not is_seed or buffer.size_elems != 1:
                raise VerificationError(
                    f"{where}: {name} of {buffer.dtype.value}[{buffer.size_elems}];"
                    " expected one element of i64, filled by the framework"
                )
        self.written |= set(step.buffers)

    def check_read(self, name: str, where: str) -> None:
        self._buffer(name, where)
        if name not in self.written:
            raise VerificationError(f"{where}: reads {name}, which nothing has written")
        self.read.add(name)

    def _check_view(self, view: TensorView, where: str) -> None:
        buffer = self._buffer(view.buffer, where)
        if len(view.sizes) != len(view.strides):
            raise VerificationError(
                f"{where}: {len(view.strides)} strides for {len(view.sizes)} axes of {view.buffer};"
                " expected one for each"
            )
        if view.dtype.itemsize_bytes != buffer.dtype.itemsize_bytes:
            raise VerificationError(
                f"{where}: {view.buffer} of {buffer.dtype.value} seen as {view.dtype.value};"
                " expected equal widths"
            )

    def _check_writable(self, buffer: Buffer, where: str) -> None:
        if buffer.kind in _READ_ONLY and buffer.name not in self.updated:
            raise VerificationError(f"{where}: writes {buffer.name}, which is read-only")

    def _buffer(self, name: str, where: str) -> Buffer:
        if name not in self.buffers:
            raise VerificationError(f"{where}: buffer {name!r} is not among the plan's buffers")
        return self.buffers[name]


def _temporaries_do_not_collide(program: Program) -> None:
    check_arena(program.plan)


_RULES: tuple[Callable[[Program], None], ...] = (
    _kernels_have_their_names,
    _buffers_are_well_formed,
    _symbols_are_known,
    _steps_fit,
    check_stores_are_apart,
    _temporaries_do_not_collide,
)
