"""Users' kernels as data: rules of parameters, messages, nodes of graphs, keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelfarm.digest import kernel_digest, kernel_key
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelfarmError, UserKernelError
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.graph_ir import Arg, Node, Ref, TensorType
from kernelfarm.ir.triton.encode import print_user_kernel
from kernelfarm.ir.triton.node import check_node, kernel_arg, kernels_of_arg, key_arguments
from kernelfarm.ir.triton.user_kernel import (
    USER_KERNEL_OP,
    Configuration,
    FixedParam,
    Pointer,
    Scalar,
    UserKernel,
)
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
    (("grids", ((1, 1),)), ("kernel", kernel_arg(KERNEL)), ("key", (1,)), ("writes", (0,))),
    (1,),
    (TYPE,),
)


_WIDE = Configuration((("BLOCK", 512),), (("num_warps", 8),))


def _with(**stated: Arg) -> Node:
    """The node with other attributes."""
    return replace(NODE, attrs=tuple((name, stated.get(name, arg)) for name, arg in NODE.attrs))


def _with_further(*further: Configuration) -> Node:
    """The node with further configurations, each with a grid."""
    grids = tuple((n + 1,) for n in range(1 + len(further)))
    return _with(grids=grids, kernel=kernel_arg(KERNEL, further))


def _changed(position: int, param: Pointer | Scalar | FixedParam) -> UserKernel:
    params = (*_PARAMS[:position], param, *_PARAMS[position + 1 :])
    return replace(KERNEL, params=params)


def test_a_message_of_a_kernel_gives_the_kernel_back() -> None:
    message = loops_pb2.Kernel.FromString(any_kernel_to_proto(KERNEL).SerializeToString())

    assert any_kernel_from_proto(message) == KERNEL


def test_the_attribute_of_a_node_gives_the_kernel_back() -> None:
    assert kernels_of_arg(kernel_arg(KERNEL), "scale_1") == (KERNEL,)
    (found,) = check_node(NODE)
    assert replace(found, name="scale_1") == KERNEL
    assert key_arguments(NODE) == (1,)


def test_a_configuration_replaces_constants_and_all_options() -> None:
    first, wide = check_node(_with_further(_WIDE))

    assert replace(first, name="scale_1") == KERNEL
    assert wide.params == (*_PARAMS[:3], FixedParam("BLOCK", 512), _PARAMS[4])
    assert wide.options == (("num_warps", 8),)
    assert str(_WIDE) == "BLOCK=512, num_warps=8"


def test_the_number_of_configurations_is_limited_also_by_the_length_of_the_source() -> None:
    further = [Configuration((("BLOCK", 2**n),), ()) for n in range(127)]
    assert len(check_node(_with_further(*further))) == 128

    with pytest.raises(
        UserKernelError, match=r"has 129 configurations.*at most 128 configurations"
    ):
        check_node(_with_further(*further, _WIDE))

    long = replace(KERNEL, source=_SOURCE + "#" * (100 * 1024))
    with pytest.raises(UserKernelError, match=r"has 41 configurations.*at most 40 configurations"):
        kernels_of_arg(kernel_arg(long, further[:40]))


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
        (replace(NODE, attrs=NODE.attrs[1:]), "expected grids, kernel, key, writes"),
        (replace(NODE, args=NODE.args[:2]), "2 arguments; expected 3"),
        (replace(NODE, args=(1, 128, 0.5)), "x_ptr is 1; expected a tensor"),
        (replace(NODE, args=(Ref(0), 1.5, 0.5)), "n is 1.5; expected an integer"),
        (replace(NODE, args=(Ref(0), 128, 1)), "p is 1; expected a float"),
        (
            replace(_with(writes=()), args=(None, 128, 0.5)),
            "not written",
        ),
        (_with(key=(0,)), "`key`; expected positions of numbers"),
        (_with(key=(3,)), "`key`; expected positions of numbers"),
        (_with(key=("n",)), "`key`; expected positions of numbers"),
        (_with(key=1), "`key`; expected positions of numbers"),
        (replace(NODE, results=(), types=()), "0 results; expected 1"),
        (_with(grids=((1,) * 4,)), "at most three"),
        (_with(grids="1"), "at most three"),
        (_with(grids=((1,), (1,))), "expected 1, one for each configuration"),
        (_with(writes=(1,)), "distinct positions of tensors"),
        (_with(writes=(0, 0)), "distinct positions"),
        (_with(writes=(7,)), "distinct positions"),
        (_with(writes=True), "distinct positions"),
        (_with(kernel="x"), "another form"),
        (_with(kernel=("a", (), (1,), (), ())), "a parameter has another form"),
        (_with(kernel=("a", (), (), (1,), ())), "an option has another form"),
        (_with(kernel=("a", (), (), (), 1)), "expected a tuple"),
        (_with(kernel=("a", (), (), (), (1,))), "expected constants and options"),
        (_with(kernel=("a", (), (), (), (((1,), ()),))), "expected a name and a value"),
        (
            _with_further(Configuration((("n", 1),))),
            "gives n a value; expected values of constants",
        ),
        (_with_further(Configuration((("TILE", 1),))), "gives TILE a value"),
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
