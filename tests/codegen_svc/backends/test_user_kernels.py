"""Users' Triton kernels become cubins and hsacos; CPUs refuse them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen_svc.backends.contract import built_variants
from codegen_svc.backends.registry import find_backend
from codegen_svc.worker.build_kernel import checked_result
from kernelfarm.digest import kernel_key
from kernelfarm.errors import KernelRejectedError
from kernelfarm.ir.artifact import SCRATCH_BYTES, BuiltKernel
from kernelfarm.ir.triton.user_kernel import FixedParam, UserKernel
from kernelfarm.targets import target_facts
from tests.support.tutorial_kernels import TUTORIALS

_GPUS = ("cuda:sm_90a", "rocm:gfx942")


def _built(kernel: UserKernel, target: str) -> tuple[BuiltKernel, ...]:
    facts = target_facts(target)
    return built_variants(find_backend(facts.vendor), kernel, facts)


@pytest.mark.sweep
@pytest.mark.parametrize("target", _GPUS)
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_compiles_to_a_binary_with_all_stages(name: str, target: str) -> None:
    kernel, facts = TUTORIALS[name].kernel(), target_facts(target)
    variants = _built(kernel, target)

    result = checked_result(
        find_backend(facts.vendor), kernel, facts, kernel_key(kernel, target), variants, 0.0
    )
    assert [bool(variant.guard) for variant in result.variants] == [True, False]
    for variant in variants:
        launch, stages = variant.launch, [stage.name for stage in variant.stages]
        assert stages[:4] == ["user_kernel", "triton", "ttir", "ttgir"]
        assert stages[-1] == variant.binary_stage
        assert launch.symbol == kernel.name
        words = [w for w in launch.arguments if w != "scratch"]
        needs_scratch = dict(launch.extras)[SCRATCH_BYTES] != "0"
        assert words.count("buffer") == len(kernel.pointers) + needs_scratch
        assert words.count("size") == len(kernel.scalars)
        first = len(kernel.scalars)
        assert [str(extent) for extent in launch.grid] == [f"s{first + n}" for n in range(3)]


def test_descriptors_on_hopper_need_scratch_memory_of_the_launch() -> None:
    variants = _built(TUTORIALS["tensor descriptors"].kernel(), "cuda:sm_90a")

    assert {dict(v.launch.extras)[SCRATCH_BYTES] for v in variants} == {"384"}


def test_the_options_of_a_kernel_are_used_and_those_of_other_vendors_noted() -> None:
    kernel = replace(
        TUTORIALS["add"].kernel(),
        options=(("num_stages", 1), ("num_warps", 2), ("waves_per_eu", 2)),
    )

    general = _built(kernel, "cuda:sm_90a")[-1]
    assert general.launch.num_warps == 2
    assert dict(general.launch.extras)["num_stages"] == "1"
    assert general.notes == ("option waves_per_eu does not exist for cuda",)
    assert _built(kernel, "rocm:gfx942")[-1].notes == ()


def test_a_processor_gets_one_library_and_notes_on_what_is_for_gpus() -> None:
    kernel = TUTORIALS["softmax"].kernel()
    hinted = replace(
        kernel, source=kernel.source.replace("mask =", "# @hint: async\n        mask =")
    )

    (built,) = _built(hinted, "cpu:aarch64")
    names = [stage.name for stage in built.stages]
    assert names == ["user_kernel", "triton", "ttir", "llir", "llir_opt", "asm", "object", "so"]
    assert not built.guard
    assert built.notes[0] == "option num_warps does not exist for cpu"
    assert built.notes[1].startswith("hint async at line")
    assert built.notes[1].endswith("ignored: it does not exist for this vendor")


def test_a_kernel_that_triton_refuses_is_an_error_with_tritons_words() -> None:
    kernel = TUTORIALS["add"].kernel()
    params = tuple(
        FixedParam(param.name, 1000) if param.name == "BLOCK" else param for param in kernel.params
    )

    with pytest.raises(KernelRejectedError, match=r"power of 2"):
        _built(replace(kernel, params=params), "cuda:sm_90a")


def test_tritons_reason_is_shown_behind_much_source_text() -> None:
    kernel = TUTORIALS["persistent matmul"].kernel()
    text = kernel.source.replace("tl.dot(a, b, total)", "tl.dot(a, b, total, input_precision='f')")

    with pytest.raises(
        KernelRejectedError, match=r"at 13:20:[\s\S]*input_precision must be one of"
    ):
        _built(replace(kernel, source=text), "rocm:gfx942")


def test_a_kernel_that_needs_too_much_shared_memory_is_refused() -> None:
    kernel = replace(TUTORIALS["tensor descriptors"].kernel(), options=(("num_stages", 16),))

    with pytest.raises(KernelRejectedError, match=r"shared memory.*smaller blocks or fewer stages"):
        _built(kernel, "cuda:sm_90a")
