"""Hints of users' kernels change artifacts where they fit, and are reported where they do not."""

from __future__ import annotations

import pytest

from codegen_svc.backends.registry import find_backend
from codegen_svc.backends.triton_hints import apply_hints
from kernelfarm.client.triton.kernel_source import kernel_source
from kernelfarm.client.triton.signatures import user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, Scalar, UserKernel
from kernelfarm.targets import target_facts
from tests.support.hinted_kernels import summed_rows

_LOOP = """def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for row in {loop}:
        at = row * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n * BLOCK, other=0.0)  {comment}
    tl.store(out_ptr + tl.arange(0, BLOCK), total)
"""
_KNOWN = frozenset({"async", "shared_memory", "waves_per_eu"})


def _kernel(
    comment: str, loop: str = "range(0, n)", block: int = 1024, **options: int
) -> UserKernel:
    params = (
        Pointer("x_ptr", DType.F32),
        Pointer("out_ptr", DType.F32),
        Scalar("n", DType.I32),
        FixedParam("BLOCK", block),
    )
    text = _LOOP.format(loop=loop, comment=comment)
    return UserKernel("kernel", text, "kernel", params, tuple(options.items()))


def _built(kernel: UserKernel, target: str) -> BuiltKernel:
    backend = find_backend(target.partition(":")[0])
    return backend.build_user_kernel(kernel, target_facts(target))[0]  # type: ignore[attr-defined]


def _stage(built: BuiltKernel, name: str) -> str:
    return next(s.content.decode() for s in built.stages if s.name == name)


@pytest.mark.parametrize(("hint", "copies_ahead"), [("shared_memory", 1), ("async", 2)])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_a_load_goes_through_shared_memory_by_asynchronous_copies(
    target: str, hint: str, copies_ahead: int
) -> None:
    plain, hinted = (_built(_kernel(c), target) for c in ("", f"# @hint: {hint}"))

    assert "cp.async" not in _stage(plain, "ptx")
    assert "cp.async.ca" in _stage(hinted, "ptx") or "cp.async.cg" in _stage(hinted, "ptx")
    assert plain.launch.shared_bytes == 0
    assert hinted.launch.shared_bytes == copies_ahead * 4096
    assert hinted.notes == (f"hint {hint} at line 5: applied",)


def test_a_number_of_waves_reaches_the_code_of_an_amd_gpu() -> None:
    plain, hinted = (_built(_kernel(c), "rocm:gfx942") for c in ("", "# @hint: waves_per_eu=4"))

    assert '"amdgpu-waves-per-eu"="4' in _stage(hinted, "llir")
    assert '"amdgpu-waves-per-eu"="4' not in _stage(plain, "llir")


def test_a_vendor_ignores_the_hints_of_others_and_says_so() -> None:
    comment = "# @hint: waves_per_eu=4, dot_pad_only_k"
    built = _built(_kernel(comment), "cuda:sm_90a")

    assert built.notes == (
        "hint waves_per_eu=4 at line 5: ignored: it does not exist for this vendor",
        "hint dot_pad_only_k at line 5: ignored: it does not exist for this vendor",
    )
    assert _stage(built, "ptx") == _stage(_built(_kernel(""), "cuda:sm_90a"), "ptx")


def test_a_pipeline_that_needs_more_shared_memory_than_the_chip_has_is_ignored() -> None:
    built = _built(_kernel("# @hint: async=8", block=16384), "cuda:sm_90a")

    (note,) = built.notes
    assert note.startswith("the hints are ignored: with them, ")
    assert "bytes of shared memory" in note
    assert "cp.async" not in _stage(built, "ptx")


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (_kernel("# @hint: async=1"), "expected 2 to 8 stages"),
        (_kernel("# @hint: async", "tl.static_range(0, 2)"), "a loop over range or tl.range"),
        (_kernel("# @hint: async", "tl.range(0, n, num_stages=4)"), "states its stages"),
        (_kernel("# @hint: waves_per_eu"), "expected a number from"),
        (_kernel("# @hint: waves_per_eu=4", waves_per_eu=2), "the launch states this option"),
    ],
)
def test_a_hint_that_does_not_fit_is_ignored_with_the_reason(
    kernel: UserKernel, problem: str
) -> None:
    hinted = apply_hints(kernel, _KNOWN)

    (note,) = hinted.notes
    assert "ignored: " in note
    assert problem in note
    assert hinted.options == {}


def test_comments_of_a_function_become_hints_of_its_statements() -> None:
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    kernel = user_kernel(kernel_source(summed_rows), types, {"BLOCK": 512}, {})

    hinted = apply_hints(kernel, _KNOWN)

    assert "other=0.0)  # @hint: async, multibuffer\n" in kernel.source
    assert [note.partition(" at ")[0] for note in hinted.notes] == [
        "hint waves_per_eu=4",
        "hint async",
        "hint multibuffer",
        "hint shared_memory",
        "hint dot_pad_only_k",
    ]
    assert [note.partition(": ")[2][:7] for note in hinted.notes] == [
        "applied",
        "applied",
        "ignored",
        "ignored",
        "ignored",
    ]
    assert hinted.options == {"waves_per_eu": 4}
    assert "for row in tl.range(0, n, num_stages=3):" in hinted.kernel.source
