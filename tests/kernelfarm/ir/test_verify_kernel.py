"""The verifier reports a violation of each rule of loop kernels."""

from dataclasses import replace

import pytest

from kernelfarm.errors import VerificationError
from kernelfarm.ir.loop_ir import Literal, Load
from kernelfarm.ir.text import parse_kernel
from kernelfarm.ir.verify import verify_kernel
from tests.support.ir_strategies import GOLDEN, KERNEL_FILES

HEADER = """kernel k
size s0 from 1
param in in0: f32[8*s0]
param in half: f16[8*s0]
param in ids: i64[s0]
param in flags: u8[s0]
param out out0: f32[8*s0]
param inout inout0: f32[8*s0]
for d0 in s0
reduce r0 in 8
  %0: f32 = load in0[8*d0 + r0]
  %1: f16 = load half[8*d0 + r0]
  %2: i64 = load ids[d0]
  %3: bool = isnan %0
  %4: f32 = load inout0[8*d0 + r0]
  store inout0[8*d0 + r0] = %4
  store out0[8*d0 + r0] = %4
"""

BROKEN = [
    ("%7: f32 = load in9[d0]", "parameter in9; expected one of: in0, half"),
    ("%7: f32 = load out0[d0]", "loads out0, which is only written"),
    ("%7: f32 = load in0[d0 + q]", "index: unknown symbol q; expected one of: d0, r0, s0"),
    ("%7: f32 = load in0[d0] if %0 else %0", "mask of f32 and other of f32; expected bool and f32"),
    ("%7: f32 = load in0[d0] if %3 else %2", "mask of bool and other of i64; expected bool"),
    ("%7: f32 = load in0[d0] if %8 else %0", "uses %8; expected a value of an earlier statement"),
    ("%7: f32 = load inout0[d0]", "accesses inout0 at d0 and at 8[*]d0 [+] r0; expected one index"),
    ("%7: u8 = 256", "literal 256 of u8; expected an integer from 0 to 255"),
    ("%7: bool = 2", "literal 2 of bool; expected an integer from 0 to 1"),
    ("%7: i32 = 2147483648", "expected an integer from -2147483648"),
    ("%7: f32 = index d0", "an index as f32; expected i32 or i64"),
    ("%7: i64 = index d1", "unknown symbol d1"),
    ("%7: c64 = convert %0", "elements of c64; expected a type that kernels compute in"),
    ("%7: u16 = 1", "elements of u16; expected a type that kernels compute in"),
    ("%7: f32 = add %0, %7", "uses %7; expected a value of an earlier statement, 0 to 6"),
    ("%7: f32 = add %0, %5", "uses statement 5, which defines no value"),
    ("%7: f32 = add %0", "add: 1 operands; expected 2"),
    ("%7: f32 = add %0, %2", "add: operands of f32, i64; expected one element type"),
    ("%7: f16 = add %1, %1", "add computes in f16; expected operands converted to f32"),
    ("%7: f32 = lt %0, %0", "lt gives f32; expected bool"),
    ("%7: f32 = reshape %0", "'reshape' is not a scalar operation"),
    ("%7: i64 = sum %2", "sum of %2, which does not vary over the reduction axes"),
    ("%7: f16 = amax %1", "amax computes in f16"),
    ("%7: f32 = any %0", "any: an operand of f32; expected bool"),
    ("%7: f32 = argmax %0", "argmax of f32 gives f32; expected i64"),
    ("%7: i64 = sum %0", "sum of f32 gives i64; expected f32"),
    ("i = indirect %0 in 8", "an index read as f32; expected i32 or i64"),
    ("d0 = indirect %2 in 8", "defines symbol 'd0'; expected a new name"),
    ("i = indirect %2 in d0", "extent: unknown symbol d0; expected one of: s0"),
    ("store in0[d0] = %0", "stores to in0, which is only read"),
    ("store out0[d0] = %1", "stores f16 to out0; expected f32"),
    ("store out0[d0] = %0", "stores %0, which varies over the reduction axes, at d0, which does"),
    ("store out9[d0] = %0", "parameter out9"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN, ids=[line for line, _ in BROKEN])
def test_a_broken_statement_is_refused_by_number(line: str, message: str) -> None:
    with pytest.raises(VerificationError, match=f"kernel k: statement 7: .*{message}"):
        verify_kernel(parse_kernel(f"{HEADER}  {line}\n"))


def test_the_header_alone_passes() -> None:
    verify_kernel(parse_kernel(HEADER))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel k", "kernel a::b", "name 'a::b'; expected an identifier"),
        ("param in flags", "param in ids.x", "name 'ids.x'; expected an identifier"),
        ("param in flags", "param in ids", "name ids is declared twice"),
        ("reduce r0 in 8", "reduce r0 in 8\nreduce d0 in 2", "name d0 is declared twice"),
        ("for d0 in s0", "for d0 in n", "extent of d0: unknown symbol n; expected one of: s0"),
        ("reduce r0 in 8", "reduce r0 in d0", "extent of r0: unknown symbol d0"),
        ("u8[s0]", "u8[d0]", "size of flags: unknown symbol d0"),
        ("param in flags: u8", "param in flags: c32", "parameter flags: elements of c32; expected"),
        ("  store out0[8*d0 + r0] = %4\n", "", "out0 is written, but no store names it"),
    ],
)
def test_a_broken_header_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify_kernel(parse_kernel(HEADER.replace(old, new)))


def test_a_mask_without_other_is_refused() -> None:
    kernel = parse_kernel(HEADER)
    load = kernel.body[0]
    assert isinstance(load, Load)
    body = (*kernel.body, Load("in0", load.index, mask=3))
    with pytest.raises(VerificationError, match="expected both or none"):
        verify_kernel(replace(kernel, body=body))


def test_an_integer_as_a_float_literal_is_refused() -> None:
    kernel = parse_kernel(HEADER)
    body = (*kernel.body, Literal(kernel.params[0].dtype, 1))
    with pytest.raises(VerificationError, match="literal 1 of f32; expected a float"):
        verify_kernel(replace(kernel, body=body))


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_well_formed_kernels_pass(path: object) -> None:
    verify_kernel(parse_kernel(path.read_text()))


def test_a_reduction_may_use_the_result_of_an_earlier_one() -> None:
    verify_kernel(parse_kernel((GOLDEN / "softmax.kernel").read_text()))
