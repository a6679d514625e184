"""Triton kernels of users through a whole farm: compiled alone, cached, refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import kernelfarm
from codegen_svc.backends.ascend.bishengir import find_bishengir
from kernelfarm.client.compile_model import connect
from kernelfarm.client.compile_triton import compile_user_kernels
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, KernelLimitError, KernelRejectedError, UserKernelError
from kernelfarm.ir.triton.user_kernel import FixedParam, Pointer, UserKernel
from kernelfarm.wire.names import MAX_TEXT_CHARS
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.hinted_kernels import summed_rows
from tests.support.hostile_kernels import CANARY, hostile_kernels
from tests.support.torch_children import run_python
from tests.support.tutorial_kernels import (
    MATMUL_SIGNATURE,
    TUTORIALS,
    add_vectors,
    attention,
    tuned_matmul,
)

_TARGETS = ("cuda:sm_90a", "rocm:gfx942")
_SIGNATURE: Mapping[str, str] = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}


def _source(text: str) -> UserKernel:
    """A kernel of any text, as a hostile client would send it."""
    return UserKernel("kernel", text, "kernel", (Pointer("x_ptr", DType.F32),))


def _repeating(count: int) -> UserKernel:
    """A kernel whose constant is repeated so often."""
    text = (
        "def kernel(x_ptr, COUNT: tl.constexpr):\n    few: tl.constexpr = (1, 2)\n"
        "    many: tl.constexpr = few * COUNT\n    tl.store(x_ptr, many[0])\n"
    )
    params = (Pointer("x_ptr", DType.F32), FixedParam("COUNT", count))
    return UserKernel(f"kernel_{count % 97}", text, "kernel", params)


def test_a_kernel_compiles_for_both_vendors_and_every_stage_can_be_read(vendor_farm: Farm) -> None:
    compiled = kernelfarm.compile_triton(
        add_vectors,
        _SIGNATURE,
        {"BLOCK": 512},
        _TARGETS,
        options={"num_warps": 2},
        endpoint=vendor_farm.endpoint,
    )

    assert compiled.binary("cuda:sm_90a").startswith(b"\x7fELF")
    assert compiled.binary("rocm:gfx942").startswith(b"\x7fELF")
    texts = compiled.texts("cuda:sm_90a")
    assert "def add_vectors(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):" in texts["user_kernel"]
    assert ".target sm_90a" in texts["ptx"]
    aligned, general = compiled.variants("rocm:gfx942")
    assert aligned.guard and not general.guard
    assert general.launch.num_warps == 2


@pytest.mark.parametrize(
    "target",
    # Each target takes seconds.
    ["cuda:sm_90a", pytest.param("rocm:gfx942", marks=pytest.mark.slow)],
)
def test_every_configuration_that_fits_compiles_and_is_cached_by_its_content(
    vendor_farm: Farm, target: str
) -> None:
    constants = {"stride_ak": 1, "stride_bn": 1, "stride_cn": 1, "ACTIVATION": None}
    signature = {**MATMUL_SIGNATURE, "k": "i32:16"}  # so that loads are pipelined
    compiled = kernelfarm.compile_triton(
        tuned_matmul, signature, constants, [target], endpoint=vendor_farm.endpoint
    )

    assert [dict(kernel.options)["num_warps"] for kernel in compiled.kernels] == [8, 8, 4, 4]
    found = compiled.configurations(target)
    assert [c.kernel for c in found] == list(compiled.kernels[1:])
    assert [c.variants[-1].launch.num_warps for c in found] == [8, 4, 4]
    assert len({compiled.binary(target, number) for number in range(3)}) == 3
    (report,) = (s for s in compiled.programs[target].stages if s.name == "report")
    with connect(vendor_farm.endpoint) as client:
        text = client.read_blobs([report.sha256])[report.sha256].decode()
    left_out = [line for line in text.splitlines() if "left out of the choice" in line]
    assert len(left_out) == 1
    assert compiled.kernels[0].name in left_out[0]
    assert f"bytes of shared memory; {target} has" in left_out[0]

    # Each configuration is a kernel of its own: one alone was compiled before.
    with connect(vendor_farm.endpoint) as client:
        alone = compile_user_kernels(compiled.kernels[2:3], [target], client)
    assert alone.programs[target].outcome == "miss"
    assert alone.programs[target].codegen_jobs == 0
    with pytest.raises(CallerError, match=f"configuration 3 of 3 for {target}"):
        compiled.binary(target, 3)


def test_a_kernel_none_of_whose_configurations_fits_is_refused_with_the_reason(
    vendor_farm: Farm,
) -> None:
    kernel = TUTORIALS["tensor descriptors"].kernel()
    kernels = [replace(kernel, options=(("num_stages", stages),)) for stages in (15, 16)]

    expected = r"none of 2 configurations compiles.* bytes of shared memory; cuda:sm_90a has"
    with (
        connect(vendor_farm.endpoint) as client,
        pytest.raises(KernelRejectedError, match=expected),
    ):
        compile_user_kernels(kernels, ["cuda:sm_90a"], client)


def test_another_process_finds_the_kernel_and_nothing_is_compiled_again(
    vendor_farm: Farm, tmp_path: Path
) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import kernelfarm\n"
        "from tests.support.tutorial_kernels import add_vectors\n"
        f"found = kernelfarm.compile_triton(add_vectors, {dict(_SIGNATURE)}, dict(BLOCK=16),\n"
        f"    {_TARGETS}, endpoint={vendor_farm.endpoint!r})\n"
        "print([(p.outcome, p.codegen_jobs) for p in found.programs.values()])\n"
    )
    shown = [
        run_python((str(script),), dict(os.environ), timeout_s=TIMEOUT_S).stdout for _ in range(2)
    ]

    assert shown == ["[('miss', 1), ('miss', 1)]\n", "[('hit', 0), ('hit', 0)]\n"]


def test_a_kernel_for_ascend_has_every_stage_and_says_that_it_is_a_stub(vendor_farm: Farm) -> None:
    compiled = kernelfarm.compile_triton(
        add_vectors, _SIGNATURE, {"BLOCK": 512}, ["ascend:910b"], endpoint=vendor_farm.endpoint
    )

    (variant,) = compiled.variants("ascend:910b")
    assert compiled.binary("ascend:910b").startswith(b"\x7fELF")
    assert "memref.copy" in compiled.texts("ascend:910b")["linalg"]
    assert variant.launch.arguments.count("buffer") == 3
    assert variant.is_stub == (find_bishengir() is None)


def test_a_hint_of_a_kernel_for_ascend_reaches_its_artifact(vendor_farm: Farm) -> None:
    compiled = kernelfarm.compile_triton(
        summed_rows,
        {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
        {"BLOCK": 512},
        ["ascend:910b"],
        endpoint=vendor_farm.endpoint,
    )

    texts = compiled.texts("ascend:910b")
    assert texts["linalg"].count("hivm.multi_buffer = 2 : i32") == 1
    assert "hint multibuffer at line 7: applied" in compiled.variants("ascend:910b")[0].notes


def test_a_kernel_compiles_for_processors_or_is_refused_with_the_operation(
    vendor_farm: Farm,
) -> None:
    target = "cpu:x86-64-v3"
    compiled = kernelfarm.compile_triton(
        add_vectors, _SIGNATURE, {"BLOCK": 128}, [target], endpoint=vendor_farm.endpoint
    )
    (variant,) = compiled.variants(target)
    assert variant.launch.arguments == (*("buffer",) * 3, *("size",) * 4, "threads")
    assert compiled.binary(target).startswith(b"\x7fELF")

    expected = "operation tt.make_tensor_descriptor has no code for processors"
    with (
        connect(vendor_farm.endpoint) as client,
        pytest.raises(KernelRejectedError, match=expected),
    ):
        compile_user_kernels((TUTORIALS["tensor descriptors"].kernel(),), [target], client)


def test_tritons_own_refusal_reaches_the_user(vendor_farm: Farm) -> None:
    with pytest.raises(KernelRejectedError, match=r"triton .* refuses kernel add_vectors_"):
        kernelfarm.compile_triton(
            add_vectors,
            _SIGNATURE,
            {"BLOCK": 1000},
            ["cuda:sm_90a"],
            endpoint=vendor_farm.endpoint,
        )


def test_every_hostile_source_gets_its_error_from_the_farm_and_nothing_runs(
    vendor_farm: Farm,
) -> None:
    with connect(vendor_farm.endpoint) as client:
        for case in hostile_kernels()[::12]:
            is_long = max(map(len, case.text.split("\n"))) > MAX_TEXT_CHARS
            expected = f"expected at most {MAX_TEXT_CHARS}" if is_long else case.message
            with pytest.raises(CallerError) as caught:
                compile_user_kernels((_source(case.text),), ["cuda:sm_90a"], client)
            assert expected in str(caught.value), case.name

    assert not CANARY.exists()


def test_a_constant_that_takes_all_memory_reaches_the_limit_of_the_sandbox(
    vendor_farm: Farm,
) -> None:
    refused = pytest.raises(KernelLimitError, match="MiB of memory")
    with connect(vendor_farm.endpoint) as client, refused:
        compile_user_kernels((_repeating(3_000_000_000),), ["cuda:sm_90a"], client)


def test_a_configuration_that_reached_a_limit_is_compiled_again_when_the_program_expires(
    vendor_farm: Farm,
) -> None:
    with connect(vendor_farm.endpoint) as client:
        limited = compile_user_kernels(
            (_repeating(3_000_000_000), _repeating(3)), ["cuda:sm_90a"], client
        )
        refused = compile_user_kernels((_repeating(-1), _repeating(3)), ["cuda:sm_90a"], client)

    limited_tags, refused_tags = (
        compiled.programs["cuda:sm_90a"].manifest.tags for compiled in (limited, refused)
    )
    assert [c.kernel for c in limited.configurations("cuda:sm_90a")] == [limited.kernels[1]]
    assert [c.kernel for c in refused.configurations("cuda:sm_90a")] == [refused.kernels[1]]
    assert "limit:cuda" in limited_tags
    assert "limit:cuda" not in refused_tags


def test_kernels_of_one_text_share_one_compilation(vendor_farm: Farm) -> None:
    kernel = TUTORIALS["softmax"].kernel()
    with connect(vendor_farm.endpoint) as client:
        first = compile_user_kernels((kernel,), ["cuda:sm_90a"], client)
        second = compile_user_kernels((replace(kernel, name="other"),), ["cuda:sm_90a"], client)

    assert [p.codegen_jobs for p in first.programs.values()] == [1]
    assert [p.codegen_jobs for p in second.programs.values()] == [0]


def test_a_signature_without_a_type_is_refused_before_the_farm_is_asked() -> None:
    with pytest.raises(UserKernelError, match="parameter q_ptr of attention has no type"):
        kernelfarm.compile_triton(attention, {}, {"BM": 16}, _TARGETS, endpoint="127.0.0.1:1")
