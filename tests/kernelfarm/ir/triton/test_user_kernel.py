"""Users' kernels as data: rules of parameters, messages, nodes of graphs, keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.digest import kernel_digest, kernel_key
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelfarmError, UserKernelError
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.graph_ir import Node, Ref, TensorType
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.node import check_node, kernel_arg, kernel_of_arg
from kernelfarm.ir.triton.user_kernel import USER_KERNEL_OP, FixedParam, Pointer, Scalar, UserKernel
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.wire.any_kernel import any_kernel_from_proto, any_kernel_to_proto

_SOURCE = """FACTOR = 2.0
def scale(x_ptr, n, p, BLOCK: tl.constexpr, KIND: tl.constexpr='a'):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * FACTOR * p, mask=at < n)
"""
_PARAMS = (
    Pointer("x_ptr", DType.F16),
    Scalar("n", DType.I32, 16),
    Scalar("p", DType.F32),
    FixedParam("BLOCK", 128),
    FixedParam("KIND", ("a", None, True, 1.5, DType.BF16)),
)
KERNEL = UserKernel("scale_1", _SOURCE, "scale", _PARAMS, (("num_stages", 2), ("num_warps", 4)))
TYPE = TensorType(DType.F16, (), ())
NODE = Node(
    USER_KERNEL_OP,
    (Ref(0), 128, 0.5),
    (("configurations", 1), ("grid", (1, 1)), ("kernel", kernel_arg(KERNEL)), ("writes", (0,))),
    (1,),
    (TYPE,),
)


def _changed(position: int, param: Pointer | Scalar | FixedParam) -> UserKernel:
    params = (*_PARAMS[:position], param, *_PARAMS[position + 1 :])
    return replace(KERNEL, params=params)


def test_a_message_of_a_kernel_gives_the_kernel_back() -> None:
    message = loops_pb2.Kernel.FromString(any_kernel_to_proto(KERNEL).SerializeToString())

    assert any_kernel_from_proto(message) == KERNEL


def test_the_attribute_of_a_node_gives_the_kernel_back() -> None:
    assert kernel_of_arg(kernel_arg(KERNEL), "scale_1") == KERNEL
    assert replace(check_node(NODE), name="scale_1") == KERNEL


def test_the_name_has_no_part_in_the_key_and_everything_else_has() -> None:
    others = [
        replace(KERNEL, source=_SOURCE.replace("2.0", "2.5")),
        replace(KERNEL, options=(("num_warps", 8),)),
        _changed(0, Pointer("x_ptr", DType.BF16)),
        _changed(1, Scalar("n", DType.I32)),
        _changed(1, Scalar("n", DType.I64, 16)),
        _changed(3, FixedParam("BLOCK", 128.0)),
        _changed(3, FixedParam("BLOCK", True)),
        _changed(4, FixedParam("KIND", None)),
    ]

    assert kernel_key(replace(KERNEL, name="other"), "cuda:sm_80") == kernel_key(
        KERNEL, "cuda:sm_80"
    )
    digests = {kernel_digest(kernel) for kernel in (KERNEL, *others)}
    assert len(digests) == 1 + len(others)
    assert kernel_key(KERNEL, "cuda:sm_90a") != kernel_key(KERNEL, "cuda:sm_80")


def test_the_order_of_options_has_no_part_in_the_key() -> None:
    other = replace(KERNEL, options=KERNEL.options[::-1])

    assert kernel_digest(other) == kernel_digest(KERNEL)


def test_the_text_shows_parameters_options_and_source() -> None:
    text = print_user_kernel(KERNEL)

    assert "scalar n: i32, a multiple of 16\n" in text
    assert "option num_warps = 4\n" in text
    assert "  def scale(x_ptr, n, p," in text


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (replace(KERNEL, entry="other"), "defines no function 'other'"),
        (replace(KERNEL, name="a b"), "expected an identifier"),
        (replace(KERNEL, params=_PARAMS[1:]), "expected those of the function"),
        (replace(KERNEL, params=_PARAMS[::-1]), "expected those of the function"),
        (_changed(0, FixedParam("x_ptr", 1)), "no parameter is a pointer"),
        (_changed(0, Pointer("x_ptr", DType.C64)), "points to c64"),
        (_changed(1, Scalar("n", DType.F16)), "of f16; expected one of"),
        (_changed(1, Scalar("n", DType.I32, 3)), "divisor 3"),
        (_changed(3, Scalar("BLOCK", DType.I32)), "has no value; expected a constant"),
        (_changed(3, FixedParam("BLOCK", 1 << 70)), "71 bits"),
        (_changed(3, FixedParam("BLOCK", "%s")), "without percent signs"),
        (_changed(3, FixedParam("BLOCK", (((1,),),))), "expected a short one"),
        (_changed(3, FixedParam("BLOCK", (1,) * 99)), "a tuple of 99 items"),
        (_changed(3, FixedParam("BLOCK", DType.C64)), "expected a type that Triton has"),
        (replace(KERNEL, options=(("num_warps", 3),)), "a power of two"),
        (replace(KERNEL, options=(("num_ctas", 2),)), "num_ctas of 2; expected 1 to 1"),
        (replace(KERNEL, options=(("ptx_options", 1),)), "option 'ptx_options'; expected one of"),
        (replace(KERNEL, options=(("num_warps", 4),) * 2), "expected each once"),
        (replace(KERNEL, source="import os\n" + _SOURCE), "outside of functions"),
    ],
)
def test_a_kernel_that_breaks_a_rule_is_refused(kernel: UserKernel, message: str) -> None:
    with pytest.raises(UserKernelError, match=message):
        check_kernel(kernel)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (replace(NODE, attrs=NODE.attrs[1:]), "expected configurations, grid, kernel, writes"),
        (replace(NODE, args=NODE.args[:2]), "2 arguments; expected 3"),
        (replace(NODE, args=(1, 128, 0.5)), "x_ptr is 1; expected a tensor"),
        (replace(NODE, args=(Ref(0), 1.5, 0.5)), "n is 1.5; expected an integer"),
        (replace(NODE, args=(Ref(0), 128, 1)), "p is 1; expected a float"),
        (
            replace(NODE, args=(None, 128, 0.5), attrs=(*NODE.attrs[:3], ("writes", ()))),
            "not written",
        ),
        (replace(NODE, attrs=(("configurations", "1"), *NODE.attrs[1:])), "expected an integer"),
        (replace(NODE, results=(), types=()), "0 results; expected 1"),
        (
            replace(NODE, attrs=(NODE.attrs[0], ("grid", (1,) * 4), *NODE.attrs[2:])),
            "at most three",
        ),
        (replace(NODE, attrs=(NODE.attrs[0], ("grid", "1"), *NODE.attrs[2:])), "at most three"),
        (replace(NODE, attrs=(*NODE.attrs[:3], ("writes", (1,)))), "distinct positions of tensors"),
        (replace(NODE, attrs=(*NODE.attrs[:3], ("writes", (0, 0)))), "distinct positions"),
        (replace(NODE, attrs=(*NODE.attrs[:3], ("writes", (7,)))), "distinct positions"),
        (replace(NODE, attrs=(*NODE.attrs[:3], ("writes", True))), "distinct positions"),
        (replace(NODE, attrs=(*NODE.attrs[:2], ("kernel", "x"), NODE.attrs[3])), "another form"),
        (
            replace(NODE, attrs=(*NODE.attrs[:2], ("kernel", ("a", (), (1,), ())), NODE.attrs[3])),
            "a parameter has another form",
        ),
        (
            replace(NODE, attrs=(*NODE.attrs[:2], ("kernel", ("a", (), (), (1,))), NODE.attrs[3])),
            "an option has another form",
        ),
    ],
)
def test_a_node_that_breaks_a_rule_is_refused(node: Node, message: str) -> None:
    with pytest.raises(UserKernelError, match=message):
        check_node(node)


def test_a_message_without_a_form_or_with_too_much_is_refused() -> None:
    message = any_kernel_to_proto(KERNEL)
    message.user.params[0].ClearField("form")
    with pytest.raises(KernelfarmError, match="its form is not set"):
        any_kernel_from_proto(message)

    message = any_kernel_to_proto(KERNEL)
    message.user.source = "#" * (1 << 18)
    with pytest.raises(KernelfarmError, match="262144 characters"):
        any_kernel_from_proto(message)

    message = any_kernel_to_proto(KERNEL)
    for _ in range(200):
        message.user.params.add(name="x", pointer=1)
    with pytest.raises(KernelfarmError, match="205 parameters"):
        any_kernel_from_proto(message)
