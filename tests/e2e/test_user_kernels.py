"""Triton kernels of users through a whole farm: compiled alone, cached, refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

import kernelfarm
from kernelfarm.client.compile_model import connect
from kernelfarm.client.compile_triton import compile_user_kernel
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, KernelRejectedError, UserKernelError
from kernelfarm.ir.triton.user_kernel import Pointer, UserKernel
from kernelfarm.wire.names import MAX_TEXT_CHARS
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.hostile_kernels import CANARY, hostile_kernels
from tests.support.torch_children import run_python
from tests.support.tutorial_kernels import TUTORIALS, add_vectors, attention

_TARGETS = ("cuda:sm_90a", "rocm:gfx942")
_SIGNATURE: Mapping[str, str] = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}


def _source(text: str) -> UserKernel:
    """A kernel of any text, as a hostile client would send it."""
    return UserKernel("kernel", text, "kernel", (Pointer("x_ptr", DType.F32),))


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


def test_another_process_finds_the_kernel_and_nothing_is_compiled_again(
    vendor_farm: Farm, tmp_path: Path
) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import kernelfarm\n"
        "from tests.support.tutorial_kernels import add_vectors\n"
        f"found = kernelfarm.compile_triton(add_vectors, {dict(_SIGNATURE)}, dict(BLOCK=256),\n"
        f"    {_TARGETS}, endpoint={vendor_farm.endpoint!r})\n"
        "print([(p.outcome, p.codegen_jobs) for p in found.programs.values()])\n"
    )
    shown = [
        run_python((str(script),), dict(os.environ), timeout_s=TIMEOUT_S).stdout for _ in range(2)
    ]

    assert shown == ["[('miss', 1), ('miss', 1)]\n", "[('hit', 0), ('hit', 0)]\n"]


def test_the_farm_refuses_a_kernel_for_a_cpu_with_the_reason(vendor_farm: Farm) -> None:
    with pytest.raises(KernelRejectedError, match="no Triton source for cpu:x86-64-v3"):
        kernelfarm.compile_triton(
            add_vectors,
            _SIGNATURE,
            {"BLOCK": 128},
            ["cpu:x86-64-v3"],
            endpoint=vendor_farm.endpoint,
        )


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
                compile_user_kernel(_source(case.text), ["cuda:sm_90a"], client)
            assert expected in str(caught.value), case.name

    assert not CANARY.exists()


def test_a_constant_that_takes_all_memory_reaches_the_limit_of_the_sandbox(
    vendor_farm: Farm,
) -> None:
    bomb = (
        "def kernel(x_ptr):\n    few: tl.constexpr = (1, 2)\n"
        "    many: tl.constexpr = few * 3000000000\n    tl.store(x_ptr, many[0])\n"
    )

    refused = pytest.raises(KernelRejectedError, match="MiB of memory")
    with connect(vendor_farm.endpoint) as client, refused:
        compile_user_kernel(_source(bomb), ["cuda:sm_90a"], client)


def test_kernels_of_one_text_share_one_compilation(vendor_farm: Farm) -> None:
    kernel = TUTORIALS["softmax"].kernel()
    with connect(vendor_farm.endpoint) as client:
        first = compile_user_kernel(kernel, ["cuda:sm_90a"], client)
        second = compile_user_kernel(
            UserKernel("other", kernel.source, kernel.entry, kernel.params, kernel.options),
            ["cuda:sm_90a"],
            client,
        )

    assert [p.codegen_jobs for p in first.programs.values()] == [1]
    assert [p.codegen_jobs for p in second.programs.values()] == [0]


def test_a_signature_without_a_type_is_refused_before_the_farm_is_asked() -> None:
    with pytest.raises(UserKernelError, match="parameter q_ptr of attention has no type"):
        kernelfarm.compile_triton(attention, {}, {"BM": 16}, _TARGETS, endpoint="127.0.0.1:1")
