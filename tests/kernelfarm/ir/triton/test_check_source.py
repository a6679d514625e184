"""The source of a user's Triton kernel: what is accepted, and what every hostile source gets."""

from __future__ import annotations

import pytest

from kernelfarm.errors import UserKernelError
from kernelfarm.ir.triton import language
from kernelfarm.ir.triton.check_source import CheckedSource, check_source
from tests.support.heavy_kernels import kernel_of
from tests.support.hostile_kernels import CANARY, HostileKernel, hostile_kernels

_SOFTMAX = """
LOG2E = 1.4426950408889634
EMPTY = float('-inf')

def scaled(x, factor=LIMIT):
    return x * factor

def kernel(out, x, stride, n, BLOCK: tl.constexpr, KIND: tl.constexpr='exp2'):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + row * stride + columns, mask=mask, other=EMPTY).to(tl.float32)
    values -= tl.max(values, axis=0)
    if KIND == 'exp2':
        made = tl.math.exp2(scaled(values, LOG2E))
    else:
        made = libdevice.exp(values)
    for step in tl.static_range(2):
        made = made + step * 0
    total = made.sum(0)[None]
    tl.store(out + row * stride + columns, (made / total).to(out.dtype.element_ty), mask=mask)
""".replace("LIMIT", "1.0")


def test_a_kernel_with_helpers_and_constants_is_accepted_and_has_its_parts() -> None:
    source = check_source(_SOFTMAX)

    assert dict(source.constants) == {"LOG2E": "1.4426950408889634", "EMPTY": "float('-inf')"}
    kernel = source.function("kernel")
    assert kernel.params == ("out", "x", "stride", "n", "BLOCK", "KIND")
    assert kernel.constexprs == {"BLOCK", "KIND"}
    assert dict(kernel.defaults) == {"KIND": "'exp2'"}
    assert dict(source.function("scaled").defaults) == {"factor": "1.0"}


def test_an_unknown_function_of_a_source_is_an_error_that_names_the_others() -> None:
    with pytest.raises(UserKernelError, match=r"no function 'other'; expected one of scaled"):
        check_source(_SOFTMAX).function("other")


@pytest.mark.parametrize(
    "body",
    [
        "tl.store(x_ptr, tl.load(x_ptr) + n)",
        "a, b = tl.split(tl.reshape(n, (2, 2)))",
        "a = n.to(tl.float32).T[:, None]",
        "a = tl.cdiv(n, 2) + triton.cdiv(n, 2) + triton.next_power_of_2(4)",
        "while n > 1:\n    n //= 2",
        "for i in tl.range(0, n, 4, num_stages=3):\n    pass",
        "if x_ptr.dtype.element_ty == tl.float8e5:\n    return",
        "a = n if n is not None else -1",
        "range_max = max(min(n, 3), 1)\na = range_max",
        "tl.static_assert(n == 1, 'n must be 1')",
        "a = 2 ** n + (1 << 31)",
        "a: tl.constexpr = 4",
        "desc = tl.make_tensor_descriptor(x_ptr, [n, n], [n, 1], [16, 16])\na = desc.load([0, 0])",
    ],
)
def test_what_kernels_are_made_of_is_accepted(body: str) -> None:
    assert isinstance(check_source(kernel_of(body)), CheckedSource)


def test_the_corpus_has_at_least_200_sources_of_distinct_texts() -> None:
    assert len({case.text for case in hostile_kernels()}) >= 200


@pytest.mark.parametrize("case", hostile_kernels(), ids=lambda case: case.name)
def test_a_hostile_source_gets_its_error_and_nothing_of_it_runs(case: HostileKernel) -> None:
    with pytest.raises(UserKernelError) as caught:
        check_source(case.text)

    assert case.message in str(caught.value)
    assert len(str(caught.value)) < 600
    assert not CANARY.exists()


def test_every_name_of_the_installed_language_is_allowed_or_excluded_with_a_reason() -> None:
    tl = pytest.importorskip("triton.language")
    known = language.FUNCTIONS | language.ELEMENT_TYPES | language.EXCLUDED.keys()

    assert set(tl.__all__) == known
    assert not (language.FUNCTIONS | language.ELEMENT_TYPES) & language.EXCLUDED.keys()


def test_every_allowed_name_exists_in_the_installed_language() -> None:
    triton = pytest.importorskip("triton")
    from triton.language.extra import libdevice  # noqa: PLC0415 - after the check above

    assert {name for name in language.MATH if not hasattr(triton.language.math, name)} == set()
    assert {name for name in language.LIBDEVICE if not hasattr(libdevice, name)} == set()
    assert {name for name in language.TRITON if not hasattr(triton, name)} == set()
