"""The source of a `@triton.jit` function as it travels, and the types of its parameters."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.triton.kernel_source import kernel_source, literal_text
from kernelfarm.client.triton.signatures import stated_signature, user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar
from tests.support import tutorial_kernels

tl = pytest.importorskip("triton.language")

_HEADER = """
import os
import triton
import triton.language as tl
import triton.language as language
from triton.language import load as read
from triton.language.extra.cuda import libdevice as device_functions
from triton.language.math import exp2

EPS = tl.constexpr(1e-6)
NEGATIVE = tl.constexpr(float("-inf"))
HALF = tl.float16
PLAIN = 3

@triton.jit
def helper(x, factor=1.5, kind: tl.constexpr = tl.float32):
    return (x * factor).to(kind)

@triton.jit
"""
_KERNEL = '''
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    """A docstring."""
    at = language.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # a comment
    x = read(x_ptr + at, mask=at < n, other=NEGATIVE)
    x = helper(x) + EPS + exp2(x) + device_functions.sqrt(x) + tl.sum(x, axis=0)
    tl.store(x_ptr + at, x.to(HALF), mask=at < max(n, triton.cdiv(n, 2)))
'''
_TEXT = """EPS = 1e-06
NEGATIVE = float('-inf')
def helper(x, factor=1.5, kind: tl.constexpr=tl.float32):
    return (x * factor).to(kind)
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=NEGATIVE)
    x = helper(x) + EPS + tl.math.exp2(x) + libdevice.sqrt(x) + tl.sum(x, axis=0)
    tl.store(x_ptr + at, x.to(tl.float16), mask=at < max(n, triton.cdiv(n, 2)))
"""


def _loaded(folder: Path, text: str, name: str = "user_module") -> Any:
    """The module of a user's file."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_of_modules_helpers_and_constants_become_those_of_the_source(tmp_path: Path) -> None:
    source = kernel_source(_loaded(tmp_path, _HEADER + _KERNEL).kernel)

    assert source.text == _TEXT
    assert source.entry == "kernel"
    assert source.params == ("x_ptr", "n", "BLOCK")
    assert source.constexprs == {"BLOCK"}


def test_file_comments_and_formatting_have_no_part_in_the_source(tmp_path: Path) -> None:
    moved = _HEADER + "# another comment\n" + _KERNEL.replace("BLOCK + tl", "BLOCK  +  tl")
    other = _loaded(tmp_path, "\n" * 40 + moved.replace('"A', '"The'), "another_module")

    assert kernel_source(other.kernel).text == _TEXT


def test_helpers_of_one_name_get_distinct_names(tmp_path: Path) -> None:
    text = (
        _HEADER
        + "def other(x):\n    return x + 1\nsecond = other\n@triton.jit\ndef other(x):\n"
        + "    return x + 2\n@triton.jit\ndef kernel(x_ptr):\n"
        + "    tl.store(x_ptr, second(other(1)))\n"
    )
    source = kernel_source(_loaded(tmp_path, text).kernel)

    assert "def other(x):\n    return x + 1\n" in source.text
    assert "def other_2(x):\n    return x + 2\n" in source.text
    assert "tl.store(x_ptr, other(other_2(1)))" in source.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("PLAIN", "uses the global PLAIN of type int; expected .*wrap it in tl.constexpr"),
        ("os.environ", "uses the global os.environ of type _Environ"),
        ("os", "uses the module os; expected Triton's language"),
        ("nothing", "the name 'nothing' is not defined"),
        ("tl.nothing", "tl.nothing does not exist"),
    ],
)
def test_a_name_that_cannot_travel_is_refused(tmp_path: Path, body: str, message: str) -> None:
    module = _loaded(tmp_path, f"{_HEADER}def kernel(x_ptr):\n    tl.store(x_ptr, {body})\n")

    with pytest.raises(UserKernelError, match=message):
        kernel_source(module.kernel)


def test_something_else_than_a_triton_function_is_refused() -> None:
    with pytest.raises(UserKernelError, match=r"'getcwd' is no function of triton\.jit"):
        kernel_source(os.getcwd)


def test_an_autotuned_kernel_gives_the_source_of_its_function() -> None:
    assert kernel_source(tutorial_kernels.matmul).entry == "matmul"


def test_constants_without_a_literal_are_refused() -> None:
    assert literal_text((1, math.inf, tl.float8e5), "x") == "(1, float('inf'), tl.float8e5)"
    with pytest.raises(UserKernelError, match="x is a dict; expected a number"):
        literal_text({}, "x")


def test_types_constants_and_defaults_become_parameters() -> None:
    source = kernel_source(tutorial_kernels.attention)
    pointers = ("q_ptr", "k_ptr", "v_ptr", "out_ptr", "lse_ptr")
    signature = {
        **dict.fromkeys(pointers, "*fp16"),
        **{"stride_h": "i64:16", "stride_n": "i32", "n": "i32", "scale": "fp32"},
    }
    kernel = user_kernel(source, signature, {"BM": 64, "BN": 32, "D": 64}, {"num_warps": 8})

    assert kernel.params[0] == Pointer("q_ptr", DType.F16)
    assert kernel.params[5] == Scalar("stride_h", DType.I64, 16)
    assert kernel.params[-1] == FixedParam("IS_CAUSAL", value=True)
    assert kernel.options == (("num_warps", 8),)
    assert kernel.name.startswith("attention_")


def test_a_signature_as_text_names_types_and_constants_in_order() -> None:
    source = kernel_source(tutorial_kernels.add_vectors)

    assert stated_signature(source, "*fp32, *fp32:16,*fp32, i32:16, 1024") == (
        {"x_ptr": "*fp32", "y_ptr": "*fp32:16", "out_ptr": "*fp32", "n": "i32:16"},
        {"BLOCK": 1024},
    )
    assert stated_signature(source, "tl.float32, True, None, 1.5, relu")[1] == {
        "x_ptr": DType.F32,
        "y_ptr": True,
        "out_ptr": None,
        "n": 1.5,
        "BLOCK": "relu",
    }
    with pytest.raises(UserKernelError, match="6 entries; add_vectors has 5"):
        stated_signature(source, "1, 2, 3, 4, 5, 6")


@pytest.mark.parametrize(
    ("signature", "constants", "message"),
    [
        ({"z": "i32"}, {}, "add_vectors has no parameter 'z'"),
        ({}, {"z": 1}, "add_vectors has no parameter 'z'"),
        ({"x_ptr": "*f32"}, {}, r"parameter x_ptr: type '\*f32'; expected"),
        ({"x_ptr": "*fp32:8"}, {}, r"type '\*fp32:8'; expected"),
        ({"x_ptr": "*fp32"}, {}, "parameter y_ptr of add_vectors has no type and no value"),
        ({}, {"x_ptr": os}, "constant x_ptr is a module"),
    ],
)
def test_a_signature_that_does_not_fit_is_refused(
    signature: dict[str, str], constants: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserKernelError, match=message):
        user_kernel(kernel_source(tutorial_kernels.add_vectors), signature, constants, {})
