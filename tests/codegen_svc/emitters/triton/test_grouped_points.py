"""Groups of neighbouring points, for pointwise kernels of varying sizes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA
from codegen_svc.backends.rocm.backend import BACKEND as ROCM
from codegen_svc.backends.triton_assumptions import VariantPlan, plan_variants
from codegen_svc.emitters.triton.grouped_points import VaryingForm, in_groups, over_rows
from codegen_svc.emitters.triton.tiling import gpu_tiling
from kernelfarm.ir.artifact import BuiltKernel, GuardAtom, GuardOp, GuardSubject
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.text import parse_kernel, print_kernel
from kernelfarm.targets import GpuFacts, target_facts
from tests.support.triton_cases import assert_same, expected, interpreter_case, random_buffers
from tests.support.triton_interpreter import run_interpreted

TARGET = target_facts("cuda:sm_90a")
DIVISIONS = re.compile(r"\b(?:div|rem)\.[su]\d\d\b")
ACCESSES = re.compile(r"\b(?:ld|st)\.global[.\w]*")

NORM = parse_kernel("""\
kernel norm_of_channels
size s0 from 0
size s1 from 0
size s2 from 0
param in in0: bf16[s0*s1*s2*s2]
param in in1: bf16[s1]
param in in2: bf16[s1]
param in in3: bf16[s1]
param out out0: bf16[s0*s1*s2*s2]
for d0 in s0
for d1 in s1
for d2 in s2*s2
  %0: bf16 = load in0[s1*s2*s2*d0 + s2*s2*d1 + d2]
  %1: f32 = convert %0
  %2: bf16 = load in1[d1]
  %3: f32 = convert %2
  %4: f32 = sub %1, %3
  %5: bf16 = load in2[d1]
  %6: f32 = convert %5
  %7: f32 = mul %4, %6
  %8: bf16 = load in3[d1]
  %9: f32 = convert %8
  %10: f32 = add %7, %9
  %11: f32 = 0.0
  %12: f32 = maximum %10, %11
  %13: bf16 = convert %12
  store out0[s1*s2*s2*d0 + s2*s2*d1 + d2] = %13
""")


def rotary(dtype: str = "bf16", width: str = "s2") -> Kernel:
    """Rotary positions: x * cos + cat(-second half, first half) * sin."""
    text = f"""\
kernel rotary
size s0 from 0
size s1 from 0
size s2 from 0
param in in0: {dtype}[s0*s1*s2]
param in in1: f32[s1*s2]
param in in2: f32[s1*s2]
param out out0: f32[s0*s1*s2]
for d0 in s0
for d1 in s1
for d2 in s2
  %0: {dtype} = load in0[s1*s2*d0 + s2*d1 + d2]
  %1: f32 = convert %0
  %2: f32 = load in1[s2*d1 + d2]
  %3: f32 = mul %1, %2
  %4: i64 = index d2
  %5: i64 = index s2 - ((s2 + 1)//2)
  %6: bool = ge %4, %5
  %7: bool = lt %4, %5
  %8: {dtype} = 0.0
  %9: {dtype} = load in0[s1*s2*d0 + s2*d1 + d2 - s2 + ((s2 + 1)//2)] if %6 else %8
  %10: {dtype} = load in0[s1*s2*d0 + s2*d1 + d2 + ((s2 + 1)//2)] if %7 else %8
  %11: f32 = convert %9
  %12: f32 = convert %10
  %13: f32 = neg %12
  %14: f32 = where %7, %13, %11
  %15: f32 = load in2[s2*d1 + d2]
  %16: f32 = mul %14, %15
  %17: f32 = add %3, %16
  store out0[s1*s2*d0 + s2*d1 + d2] = %17
"""
    if width != "s2":
        text = text.replace("size s2 from 0\n", "").replace("s2", width)
    return parse_kernel(text)


HALVES = parse_kernel("""\
kernel halves
size s0 from 0
size s1 from 0
param in in0: f16[s0*s1]
param in in1: i64[(s1//2)]
param out out0: i64[s0*(s1//2)]
for d0 in s0
for d1 in (s1//2)
  %0: f16 = load in0[s1*d0 + d1]
  %1: f16 = load in0[s1*d0 + d1 + (s1//2)]
  %2: f32 = convert %0
  %3: f32 = convert %1
  %4: f32 = mul %2, %3
  %5: i64 = convert %4
  %6: i64 = load in1[d1]
  %7: i64 = add %5, %6
  store out0[(s1//2)*d0 + d1] = %7
""")

PLANES = parse_kernel("""\
kernel planes
size s0 from 0
size s1 from 0
size s2 from 0
param in in0: f32[s0*s1*s2]
param in in1: f32[s0]
param out out0: f32[s0*s1*s2]
for d0 in s0
for d1 in s1*s2
  %0: f32 = load in0[s1*s2*d0 + d1]
  %1: f32 = load in1[d0]
  %2: f32 = mul %0, %1
  store out0[s1*s2*d0 + d1] = %2
""")

ROWS_OF_64 = parse_kernel("""\
kernel rows_of_64
size s0 from 0
size s1 from 0
param in in0: f32[64*s0*s1]
param in in1: f32[64*s1]
param out out0: f32[64*s0*s1]
for d0 in s0
for d1 in 64*s1
  %0: f32 = load in0[64*s1*d0 + d1]
  %1: f32 = load in1[d1]
  %2: f32 = add %0, %1
  store out0[64*s1*d0 + d1] = %2
""")

PRODUCT = parse_kernel("""\
kernel product
size s0 from 0
size s1 from 0
param in in0: bf16[s0*s1]
param in in1: bf16[s0*s1]
param out out0: bf16[s0*s1]
for d0 in s0*s1
  %0: bf16 = load in0[d0]
  %1: bf16 = load in1[d0]
  %2: f32 = convert %0
  %3: f32 = convert %1
  %4: f32 = mul %2, %3
  %5: bf16 = convert %4
  store out0[d0] = %5
""")


def planned(kernel: Kernel) -> tuple[VariantPlan, ...]:
    return plan_variants(kernel, TARGET.memory, uses_pointer_range=False)


def divisors(kernel: Kernel) -> dict[str, int]:
    found = in_groups(kernel)
    assert found is not None
    return dict(found.divisors)


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (NORM, {"s2": 4}),
        (PLANES, {"s1": 4, "s2": 4}),
        (ROWS_OF_64, {}),
        (HALVES, {"s1": 32}),
        (rotary(), {"s2": 16}),
        (rotary("f32"), {"s2": 16}),
        (rotary("i8"), {"s2": 32}),
        (rotary(width="96"), {}),
    ],
)
def test_few_sizes_must_be_multiples_of_small_numbers(
    kernel: Kernel, known: dict[str, int]
) -> None:
    assert divisors(kernel) == known


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("for d2 in s2*s2", "for d2 in 49"), "rows of static length that have no groups"),
        (("for d1 in s1\nfor d2 in s2*s2", "for d1 in 8\nfor d2 in 3136"), "no size divides"),
        (("in0[d2 + d1*s2*s2 + d0*s1*s2*s2]", "in0[2*d2]"), "every second element"),
        (("in0[d2 + d1*s2*s2 + d0*s1*s2*s2]", "in0[(d2//2)]"), "each element twice"),
    ],
)
def test_other_kernels_have_no_groups(change: tuple[str, str], why: str) -> None:
    text = print_kernel(NORM)
    assert change[0] in text, text
    assert in_groups(parse_kernel(text.replace(*change))) is None, why


def check_form(kernel: Kernel, form: VaryingForm | None, sizes: dict[str, int], rows: int) -> None:
    """A form gives the numbers of its kernel by programs of fewer rows."""
    assert form is not None
    tiling = form.tiling(TARGET.section(GpuFacts), 32, 0)
    assert tiling is not None
    tiling = replace(tiling, xblock=rows, xsub=rows)
    buffers = random_buffers(kernel, sizes)
    (result,) = run_interpreted([interpreter_case(form.kernel, buffers, sizes, tiling)])
    assert not isinstance(result, str), result
    assert_same(kernel.params[-1].dtype, result[-1], expected(kernel, buffers, sizes)["out0"])


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (NORM, {"s0": 1, "s1": 1, "s2": 4}),
        (NORM, {"s0": 3, "s1": 5, "s2": 4}),
        (NORM, {"s0": 2, "s1": 7, "s2": 12}),
        (PLANES, {"s0": 5, "s1": 4, "s2": 12}),
        (ROWS_OF_64, {"s0": 3, "s1": 3}),
        (HALVES, {"s0": 7, "s1": 96}),
        (rotary(), {"s0": 3, "s1": 5, "s2": 48}),
        (rotary("f32"), {"s0": 2, "s1": 9, "s2": 16}),
        (rotary("i8"), {"s0": 2, "s1": 3, "s2": 64}),
        (rotary(width="96"), {"s0": 2, "s1": 5}),
    ],
)
def test_groups_give_the_same_numbers(kernel: Kernel, sizes: dict[str, int]) -> None:
    check_form(kernel, in_groups(kernel), sizes, 8)


@pytest.mark.parametrize(("images", "pixels"), [(8, 3), (16, 2), (8, 4)])
def test_several_images_give_the_same_numbers(images: int, pixels: int) -> None:
    sizes = {"s0": images, "s1": 256, "s2": pixels}
    check_form(NORM, over_rows(NORM), sizes, 8)


def test_images_share_the_numbers_of_channels() -> None:
    form = over_rows(NORM)
    assert form is not None
    assert dict(form.divisors) == {"s0": 8, "s1": 256}
    assert over_rows(PLANES) is None, "two axes"
    assert over_rows(rotary()) is None, "loads for each point"
    text = print_kernel(NORM)
    assert over_rows(parse_kernel(text.replace("for d0 in s0", "for d0 in s1"))) is None
    assert over_rows(parse_kernel(text.replace("for d2 in s2*s2", "for d2 in s0"))) is None
    assert over_rows(parse_kernel(text.replace("d1*s2*s2", "d1*s2"))) is None, "images overlap"


@pytest.mark.parametrize("sizes", [{"s0": 6, "s1": 8}, {"s0": 1, "s1": 2064}])
def test_an_even_number_of_consecutive_points_gives_the_same_numbers(sizes: dict[str, int]) -> None:
    tiling = gpu_tiling(PRODUCT, TARGET, 32)
    assert tiling is not None
    tiling = replace(tiling, has_even_points=True)
    buffers = random_buffers(PRODUCT, sizes)
    (result,) = run_interpreted([interpreter_case(PRODUCT, buffers, sizes, tiling)])
    assert not isinstance(result, str), result
    assert_same(PRODUCT.params[-1].dtype, result[-1], expected(PRODUCT, buffers, sizes)["out0"])


def conditions(plan: VariantPlan | BuiltKernel) -> list[GuardAtom]:
    """The conditions of a guard on sizes that are multiples."""
    return [
        atom
        for atom in plan.guard
        if atom.subject is not GuardSubject.PARAM_ADDRESS and atom.op is GuardOp.DIVISIBLE
    ]


def divisible(size: str, divisor: int) -> GuardAtom:
    return GuardAtom(GuardSubject.SYMBOL, size, GuardOp.DIVISIBLE, divisor)


EVEN_POINTS_OF_ROTARY = GuardAtom(GuardSubject.PARAM_EXTENT, 3, GuardOp.DIVISIBLE, 16)


def test_variants_are_in_groups_then_even_then_aligned() -> None:
    grouped, even, aligned, general = planned(rotary())
    assert conditions(grouped) == [divisible("s2", 16)]
    assert conditions(even) == [EVEN_POINTS_OF_ROTARY]
    assert grouped.form is not None
    assert (even.form, even.has_even_points) == (None, True)
    assert conditions(aligned) == []
    assert aligned.guard
    assert general.guard == ()


def test_images_come_behind_groups_also_if_launchers_prefer_more_conditions() -> None:
    grouped, images, even, *_ = plans = planned(NORM)
    assert conditions(grouped)[0] == divisible("s2", 4)
    assert conditions(images) == [divisible("s0", 8), divisible("s1", 256)]
    assert conditions(even) == conditions(grouped)[1:]
    counts = [len(plan.guard) for plan in plans]
    assert counts == sorted(counts, reverse=True)


def test_consecutive_points_have_one_more_variant() -> None:
    even, aligned, _ = planned(PRODUCT)
    assert conditions(even) == [GuardAtom(GuardSubject.PARAM_EXTENT, 2, GuardOp.DIVISIBLE, 16)]
    assert conditions(aligned) == []


def test_a_result_in_place_states_the_number_of_points_too() -> None:
    text = print_kernel(PRODUCT).replace("param out out0: bf16[s0*s1]\n", "")
    text = text.replace("param in in0", "param inout inout0").replace("in0[", "inout0[")
    even, aligned, _ = planned(parse_kernel(text.replace("out0[", "inout0[")))
    assert conditions(even) == [GuardAtom(GuardSubject.PARAM_EXTENT, 0, GuardOp.DIVISIBLE, 16)]
    assert conditions(aligned) == []


@pytest.mark.parametrize(
    "text",
    [
        print_kernel(PRODUCT).replace("s0*s1", "64*s0*s1"),  # even for all sizes
        print_kernel(PRODUCT).replace("out0: bf16[s0*s1]", "out0: bf16[s0*s1 + 8]"),
        print_kernel(PRODUCT).replace("s0*s1", "4096"),
        print_kernel(ROWS_OF_64),  # groups need no more than alignment
        print_kernel(rotary(width="128")),
    ],
)
def test_other_kernels_have_two_variants(text: str) -> None:
    first, general = planned(parse_kernel(text))
    assert conditions(first) == []
    assert general.guard == ()


def ptx_of(built: BuiltKernel) -> str:
    return next(s.content for s in built.stages if s.name == "ptx").decode()


@pytest.mark.parametrize(
    ("kernel", "wide", "narrow"),
    # Of wide accesses a thread has two groups if its elements have 32 bits.
    [
        (NORM, 2, 3),
        (rotary(), 9, 0),
        (rotary(width="128"), 9, 0),
        (PLANES, 4, 2),
        (ROWS_OF_64, 6, 0),
    ],
)
def test_a_group_is_read_16_bytes_at_a_time_and_divides_once(
    kernel: Kernel, wide: int, narrow: int
) -> None:
    built = CUDA.build(kernel, TARGET)
    text = ptx_of(built[0])
    accesses = ACCESSES.findall(text)
    assert sum(".v4" in access for access in accesses) == wide, accesses
    assert len(accesses) == wide + narrow, accesses
    assert len(DIVISIONS.findall(text)) <= 4
    assert len(DIVISIONS.findall(ptx_of(built[-1]))) >= 8
    assert not built[0].launch.spills
    assert built[0].launch.xblock_elems * built[0].launch.rblock_elems == 2048


def test_an_even_number_of_points_is_read_16_bytes_at_a_time() -> None:
    even, aligned, general = CUDA.build(PRODUCT, TARGET)
    assert [".v4" in access for access in ACCESSES.findall(ptx_of(even))] == [True] * 3
    assert not any(".v4" in access for access in ACCESSES.findall(ptx_of(aligned)))
    assert even.launch.grid == general.launch.grid


def test_points_of_short_rows_are_read_16_bytes_at_a_time_though_their_axes_are_not_even() -> None:
    _, images, even, aligned, _ = CUDA.build(NORM, TARGET)
    accesses = ACCESSES.findall(ptx_of(images))
    # A thread has 16 points, and two columns for which it loads the three numbers of a channel.
    assert sum(".v4" in access for access in accesses) == 4
    assert len(accesses) == 4 + 3 * 2
    assert len(DIVISIONS.findall(ptx_of(images))) <= 4
    assert sum(".v4" in access for access in ACCESSES.findall(ptx_of(even))) == 2
    assert not any(".v4" in access for access in ACCESSES.findall(ptx_of(aligned)))


@pytest.mark.parametrize("sizes", [(8, 256, 4), (32, 256, 56), (16, 512, 7)])
def test_a_launch_has_a_program_for_2048_points(sizes: tuple[int, int, int]) -> None:
    values = dict(zip(("s0", "s1", "s2"), sizes, strict=True))
    points = sizes[0] * sizes[1] * sizes[2] ** 2
    for built in CUDA.build(NORM, TARGET)[0 if sizes[2] % 4 == 0 else 1 :]:
        (programs,) = built.launch.grid
        assert programs.evaluate(values) == -(-points // 2048)


@pytest.mark.parametrize("kernel", [NORM, rotary(), PRODUCT])
def test_amds_chips_have_the_same_variants(kernel: Kernel) -> None:
    found = ROCM.build(kernel, target_facts("rocm:gfx942"))
    assert [conditions(v) for v in found] == [conditions(v) for v in CUDA.build(kernel, TARGET)]
    for built in found:
        assert not built.launch.spills
        assert next(s.content for s in built.stages if s.name == "hsaco")
    assembly = next(s.content for s in found[0].stages if s.name == "amdgcn").decode()
    assert re.search(r"(?:global|buffer)_load_dwordx4", assembly)
    assert re.search(r"(?:global|buffer)_store_dwordx4", assembly)
