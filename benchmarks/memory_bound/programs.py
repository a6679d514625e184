"""The programs: functions of a few tensors, and the shapes at which they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

WIDTHS = (512, 1024, 4096, 8192, 16384, 32768, 50304, 65536, 131072)
"""Elements of a row; 50,304 are the classes of GPT-2 models."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A function of `x` and other operands, whose shapes follow from that of `x`.

    If it is `trained`, a call also computes the gradient of `x`, and reads `x` twice. If it has
    `classes`, its last operand is the index of an element in each row.
    """

    function: Callable[..., Tensor]
    others: Callable[[Shape], list[Shape]] = lambda _: []
    is_trained: bool = False
    has_classes: bool = False


def _vectors(number: int, axis: int = -1) -> Callable[[Shape], list[Shape]]:
    return lambda shape: [(shape[axis],)] * number


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[1],), weight, bias)


def _rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def _batch_norm_relu(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.relu(functional.batch_norm(x, mean, var.abs(), weight, bias))


PROGRAMS = {
    "softmax": Program(lambda x: functional.softmax(x, -1)),
    "log_softmax": Program(lambda x: functional.log_softmax(x, -1)),
    "layer_norm": Program(_layer_norm, _vectors(2)),
    "rms_norm": Program(
        lambda x, weight: functional.rms_norm(x, (x.shape[1],), weight), _vectors(1)
    ),
    "layer_norm_silu": Program(lambda *args: functional.silu(_layer_norm(*args)), _vectors(2)),
    "bias_gelu": Program(lambda x, bias: functional.gelu(x + bias), _vectors(1)),
    "swiglu": Program(lambda x, gate: functional.silu(gate) * x, lambda shape: [shape]),
    "rotary": Program(_rotary, lambda shape: [shape[-2:], shape[-2:]]),
    "batch_norm_relu": Program(_batch_norm_relu, _vectors(4, axis=1)),
    "cross_entropy": Program(functional.cross_entropy, has_classes=True),
    "cross_entropy_training": Program(functional.cross_entropy, is_trained=True, has_classes=True),
    "column_sum": Program(lambda x: x.sum(0)),
    "transposing_add": Program(lambda x, y: x + y.t(), lambda shape: [shape[::-1]]),
}

ROW_PROGRAMS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "layer_norm_silu", "bias_gelu")
LOSSES = ("cross_entropy", "cross_entropy_training")
BATCH_NORM_SHAPES = ((32, 64, 112, 112), (32, 256, 56, 56), (32, 512, 28, 28), (32, 2048, 7, 7))
COLUMN_SHAPES = ((8192, 768), (8192, 3072), (4096, 4096), (32768, 64), (20480, 26112))


@dataclass(frozen=True)
class Case:
    """A program at one shape of `x`; with varying sizes, it is compiled once for all shapes."""

    name: str
    shape: Shape
    dtype: torch.dtype
    is_varying: bool = False
    is_channels_last: bool = False

    @property
    def program(self) -> Program:
        """What is compiled."""
        return PROGRAMS[self.name]

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        words = [self.name, "x".join(map(str, self.shape)), dtype]
        words += ["channels-last"] * self.is_channels_last + ["varying"] * self.is_varying
        return " ".join(words)

    def operands(self, device: str, *, has_values: bool = True) -> list[Tensor]:
        """Random operands, or ones without values."""
        make = torch.randn if has_values else torch.empty
        x, *others = (
            make(shape, dtype=self.dtype, device=device)
            for shape in (self.shape, *self.program.others(self.shape))
        )
        if self.is_channels_last:
            x = x.to(memory_format=torch.channels_last)
        if self.program.has_classes:
            others.append(torch.randint(0, self.shape[1], self.shape[:1], device=device))
        return [x.requires_grad_(self.program.is_trained), *others]

    def call(self, function: Callable[..., Tensor], operands: list[Tensor]) -> Tensor:
        """The result of a call of the compiled or plain function; if trained, the gradient."""
        if not self.program.is_trained:
            with torch.no_grad():
                return function(*operands)
        operands[0].grad = None
        function(*operands).backward()  # type: ignore[no-untyped-call]  # torch's own
        assert operands[0].grad is not None
        return operands[0].grad

    def moved_bytes(self, operands: list[Tensor], result: Tensor) -> int:
        """Bytes that a call reads or writes at least."""
        moved = [*operands, result, *([operands[0]] if self.program.is_trained else [])]
        return sum(each.numel() * each.element_size() for each in moved)


def cases(elems: int, dtypes: Iterable[torch.dtype]) -> Iterator[Case]:
    """All cases; row programs have about `elems` elements."""
    for dtype in dtypes:
        for is_varying in (False, True):
            for name in (*ROW_PROGRAMS, "column_sum"):
                for width in WIDTHS:
                    yield Case(name, (max(2, elems // width), width), dtype, is_varying)
            yield Case("swiglu", (max(2, elems // 16384), 16384), dtype, is_varying)
            yield Case("rotary", (max(2, elems >> 19), 4096, 128), dtype, is_varying)
            for name in LOSSES:
                yield Case(name, (max(2, elems // 50304), 50304), dtype, is_varying)
            for shape in BATCH_NORM_SHAPES:
                for is_channels_last in (False, True):
                    yield Case("batch_norm_relu", shape, dtype, is_varying, is_channels_last)
            for shape in COLUMN_SHAPES:
                yield Case("column_sum", shape, dtype, is_varying)
            yield Case("transposing_add", (8192, 8192), dtype, is_varying)
