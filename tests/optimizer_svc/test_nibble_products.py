"""Products by weights of integers of four bits, by a template kernel, run by an interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, as_expr
from kernelfarm.ir.program_ir import BufferKind, ExternCall, Launch, Program
from kernelfarm.ir.verify import verify_program
from kernelfarm.targets import GpuFacts, target_facts
from optimizer_svc.analysis.strided_views import StridedView
from optimizer_svc.kernels.nibble_product import nibble_product
from optimizer_svc.pipeline import optimize
from tests.support.integer_weights import GROUP
from tests.support.template_kernels import (
    check_by_interpreter,
    constant,
    templates,
)
from tests.support.traced_graphs import traced

FACTS = target_facts("cuda:sm_90a")
assert FACTS.few_rows is not None
assert FACTS.few_rows.grouped_nibbles is not None
TIMES = replace(FACTS.few_rows.grouped_nibbles, min_weight_bytes=0)
TARGET = replace(FACTS, few_rows=replace(FACTS.few_rows, grouped_nibbles=TIMES))


def of_bytes(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1)


def of_signed_bytes(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4 & 15), -1)


def of_words(words: Tensor) -> Tensor:
    return words[:, :, None] >> torch.arange(0, 32, 4, dtype=torch.int32) & 15


def of_shifted_words(words: Tensor) -> Tensor:
    return torch.stack([words >> 4 * part & 15 for part in range(8)], -1)


def grouped(integers: Tensor, scale: Tensor) -> Tensor:
    return integers.reshape(*scale.shape, GROUP).to(scale.dtype)


def with_zeros(integers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return ((grouped(integers, scale) - zero[:, :, None]) * scale[:, :, None]).flatten(1)


def centred(integers: Tensor, scale: Tensor) -> Tensor:
    return ((grouped(integers, scale) - 8) * scale[:, :, None]).flatten(1)


def centred_as_integers(integers: Tensor, scale: Tensor) -> Tensor:
    signed = integers.to(torch.int8) - 8
    return (scale[:, :, None] * grouped(signed, scale)).flatten(1)


@dataclass(frozen=True)
class Form:
    """A product of `rows` by a weight of n x k that is unpacked, then scaled."""

    rows: int = 1
    n: int = 48
    k: int = 512
    stored: torch.dtype = torch.uint8
    unpacked: Callable[[Tensor], Tensor] = of_bytes
    scaled: Callable[..., Tensor] = with_zeros
    dtype: torch.dtype = torch.bfloat16
    has_bias: bool = False

    def __str__(self) -> str:
        names = (self.unpacked.__name__, self.scaled.__name__, str(self.dtype), str(self.stored))
        return f"{self.rows}, {self.n} x {self.k}, {', '.join(names)}, bias: {self.has_bias}"

    def layer(self, x: Tensor, packed: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        bias = others[-1] if self.has_bias else None
        zeros = others[: len(others) - self.has_bias]
        return functional.linear(x, self.scaled(self.unpacked(packed), scale, *zeros), bias)

    def operands(self) -> list[Tensor]:
        torch.manual_seed(0)
        words = torch.randint(-(2**31), 2**31, (self.n, self.k // 8), dtype=torch.int32)
        scale = (torch.rand(self.n, self.k // GROUP) + 0.5).to(self.dtype) / 8
        found = [torch.randn(self.rows, self.k).to(self.dtype), words.view(self.stored), scale]
        if self.scaled in (with_zeros, by_wider_groups):
            found.append(torch.randint(0, 16, scale.shape).to(self.dtype))
        if self.has_bias:
            found.append(torch.randn(self.n).to(self.dtype))
        return found


def programs_of(function: Callable[..., object], operands: Sequence[Tensor]) -> list[Program]:
    """The programs of a function, which are not run."""
    programs: list[Program] = []
    for captured in traced(function, *operands):
        lowered = decompose_to_prims(captured.graph, max_sorted_elems=TARGET.max_sorted_elems)
        programs.append(optimize(lowered.graph, TARGET).program)
        verify_program(programs[-1])
    return programs


def check(function: Callable[..., Tensor], operands: Sequence[Tensor]) -> Program:
    """The program, which gives what eager gives in float64."""
    return check_by_interpreter(function, operands, TARGET)


FORMS = (
    Form(),
    Form(rows=3, has_bias=True),
    Form(rows=8, dtype=torch.float16, stored=torch.int32, unpacked=of_shifted_words),
    Form(rows=9, n=100),
    Form(rows=30, n=40),
    Form(rows=16, scaled=centred, has_bias=True),
    Form(rows=2, stored=torch.int8, unpacked=of_signed_bytes, scaled=centred_as_integers),
    Form(k=128, n=7),
    Form(k=3 * 128, scaled=centred_as_integers),
    Form(k=44 * 128, n=20),
    Form(k=48 * 128, n=7, dtype=torch.float16),
    Form(k=14 * 128, n=20, dtype=torch.float16, stored=torch.int32, unpacked=of_words),
)


@pytest.mark.sweep
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_template_multiplies_by_words_of_four_bits(form: Form) -> None:
    program = check(form.layer, form.operands())
    (kernel,) = templates(program)
    assert (constant(kernel, "N"), constant(kernel, "K")) == (form.n, form.k)
    assert not any(isinstance(step, ExternCall) for step in program.plan.steps)


def test_what_follows_reads_the_product_and_a_result_is_made_in_its_output() -> None:
    form = Form(rows=4)

    def layer(x: Tensor, *stored: Tensor) -> Tensor:
        first = form.layer(x.flatten(0, 1), *stored[:3]).relu()
        wide = torch.cat([first] * 11, 1)[:, :512]
        return form.layer(wide, *stored[3:]).reshape(2, 2, 48)

    (x, *stored), (_, *others) = form.operands(), form.operands()
    program = check(layer, [x.reshape(2, 2, 512), *stored, *others])
    assert len(templates(program)) == 2
    last = program.plan.steps[-1]
    assert isinstance(last, Launch)
    kinds = {buffer.name: buffer.kind for buffer in program.plan.buffers}
    assert kinds[last.buffers[-1]] is BufferKind.OUTPUT


def test_a_result_that_is_returned_is_read_there() -> None:
    form = Form(rows=1)

    def layer(x: Tensor, *stored: Tensor) -> tuple[Tensor, Tensor]:
        found = form.layer(x, *stored)
        return found, found.exp()

    (program,) = programs_of(layer, form.operands())
    kinds = [buffer.kind for buffer in program.plan.buffers]
    assert kinds.count(BufferKind.OUTPUT) == 2
    assert BufferKind.TEMPORARY not in kinds


def test_strided_rows_are_read_where_they_are() -> None:
    form = Form(rows=3)
    x, *stored = form.operands()
    wide = torch.cat([x, x + 1], 1)
    program = check(lambda wide, *stored: form.layer(wide[:, 512:], *stored), [wide, *stored])
    (kernel,) = templates(program)
    assert constant(kernel, "x_stride") == 1024
    assert constant(kernel, "x_first") == 512


def test_rows_at_the_end_of_a_varying_number_are_read_where_they_are() -> None:
    """The last token of a text, as a language model reads it: its offset varies."""
    form = Form(rows=2)
    x, *stored = form.operands()
    hidden = torch.stack([x, x + 1, x - 1], 1)
    torch._dynamo.mark_dynamic(hidden, 1)
    program = check(lambda hidden, *stored: form.layer(hidden[:, -1], *stored), [hidden, *stored])
    (kernel,) = templates(program)
    assert {scalar.name for scalar in kernel.scalars} == {"exponents", "x_first", "x_stride"}


def by_halves(packed: Tensor) -> Tensor:
    return torch.cat((packed & 15, packed >> 4), -1)


def swapped(packed: Tensor) -> Tensor:
    return torch.stack((packed >> 4, packed & 15), -1)


def of_five_bits(packed: Tensor) -> Tensor:
    return torch.stack((packed & 31, packed >> 4), -1)


def unmasked(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1)  # of signed bytes: negative numbers


def wrapping(integers: Tensor, scale: Tensor) -> Tensor:
    return (scale[:, :, None] * grouped(integers - 8, scale)).flatten(1)  # of unsigned bytes


def by_wider_groups(integers: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    ends = [t.repeat_interleave(2, 1)[:, : scale.shape[1]] for t in (scale, zero)]
    return with_zeros(integers, *ends)


OTHERS = (
    Form(unpacked=by_halves),
    Form(unpacked=swapped),
    Form(unpacked=of_five_bits),
    Form(stored=torch.int8, unpacked=unmasked),
    Form(scaled=wrapping),
    Form(scaled=by_wider_groups),
    Form(k=192 * 2, scaled=lambda q, s: (q.flatten(1).to(s.dtype) - 8) * s[:, :1]),
)


@pytest.mark.parametrize("form", OTHERS, ids=str)
def test_other_weights_are_computed_in_loops_or_by_the_library(form: Form) -> None:
    (program,) = programs_of(form.layer, form.operands())
    assert not templates(program)


@pytest.mark.parametrize(
    ("rows", "n", "k", "expected", "registers"),
    [
        (1, 4096, 4096, (1, 16, 2), None),
        (1, 6144, 4096, (1, 8, 2), None),
        (1, 14336, 4096, (1, 4, 4), None),
        (8, 28672, 8192, (1, 8, 2), None),
        (4, 4096, 14336, (1, 16, 2), 64),
        (1, 4096, 11008, (1, 16, 2), 64),
        (1, 8192, 28672, (1, 8, 2), 64),
        (1, 5120, 13824, (1, 8, 2), None),
        (1, 2048, 8192, (1, 16, 2), None),
        (1, 1024, 1024, (1, 8, 1), None),
        (2, 64, 128, (1, 1, 1), None),
        (16, 1024, 1024, (1, 8, 1), None),
        (16, 4096, 4096, (2, 16, 2), None),
        (16, 6144, 4096, (2, 4, 2), None),
        (9, 14336, 4096, (2, 2, 4), None),
        (16, 4096, 14336, (2, 8, 2), None),
        (32, 4096, 4096, (2, 8, 2), None),
        (17, 14336, 4096, (2, 2, 2), None),
    ],
)
def test_a_program_has_the_warps_that_were_fast(
    rows: int, n: int, k: int, expected: tuple[int, int, int], registers: int | None
) -> None:
    """Tiles of 16 results, warps, and groups of a warp's step; the most registers of a thread."""
    x = StridedView(0, (as_expr(rows), as_expr(k)), (as_expr(k), ONE))
    types = dict.fromkeys(("x", "scale", "out"), DType.BF16) | {"words": DType.U8}
    made = nibble_product({"x": x}, types, as_expr(n), 8.0, TARGET.section(GpuFacts))
    found = tuple(constant(made.kernel, name) for name in ("TILES", "WARPS", "GROUPS"))
    assert found == expected
    assert dict(made.kernel.options).get("maxnreg") == registers
    assert made.sizes[1].as_int() == -(-n // (16 * expected[0]))
