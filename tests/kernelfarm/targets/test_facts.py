"""Facts of chips and vendors: how files become records, and which files are refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.errors import InternalError, UnknownTargetError
from kernelfarm.targets import (
    CompileCost,
    GpuFacts,
    LlvmFacts,
    MemoryFacts,
    ProcessorFacts,
    TargetFacts,
    TritonFacts,
    VendorFacts,
    all_targets,
    all_vendors,
    target_facts,
    vendor_facts,
)
from kernelfarm.targets.parse import parse_record
from optimizer_svc.kernels.name_kernel import MAX_NAME_CHARS

CHIP = {"name": "echo:one", "vendor": "echo", "arch": "one", "title": "A chip"}
TRITON = {"has_f64": True, "has_exact_division": False, "max_sort_elems": 64}


def parsed(**more: Any) -> TargetFacts:
    return parse_record(TargetFacts, {**CHIP, **more}, "echo_one.toml")


def test_a_chip_needs_only_its_names() -> None:
    target = parsed()
    assert target.max_sorted_elems is None
    assert target.gpu is target.triton is target.processor is None
    assert target.two_passes("softmax_sum").rows is None


def test_values_keep_their_types() -> None:
    limits = {"welford_m2": {"rows": 8, "varying": True}, "softmax_sum": {}}
    target = parsed(triton=TRITON, max_two_pass_elems=limits)
    facts = target.section(TritonFacts)
    assert facts == TritonFacts(has_f64=True, has_exact_division=False, max_sort_elems=64)
    assert [op for op, _ in target.max_two_pass_elems] == ["softmax_sum", "welford_m2"]
    assert (target.two_passes("welford_m2").rows, target.two_passes("welford_m2").columns) == (
        8,
        None,
    )
    cost = parse_record(CompileCost, {"base_ms": 20, "math_ms": {"tan": 6}}, "echo.toml")
    assert cost.math_ms == (("tan", 6.0),)
    assert type(cost.base_ms) is float


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_sorted": 5}, "unknown 'max_sorted'; expected some of"),
        ({"max_sorted_elems": "1024"}, "max_sorted_elems is '1024'; expected int"),
        ({"max_sorted_elems": 0}, "max_sorted_elems is 0; expected a positive number"),
        ({"max_sorted_elems": {"a": 1}}, "max_sorted_elems is a table"),
        ({"triton": {**TRITON, "has_f64": "True"}}, "triton: has_f64 is 'True'; expected bool"),
        ({"triton": {**TRITON, "has_f64": 1}}, "triton: has_f64 is 1; expected bool"),
        ({"triton": {"has_f64": True}}, "triton: 'has_exact_division' is missing"),
        ({"triton": True}, "triton is True; expected TritonFacts"),
        ({"max_two_pass_elems": {"sum": {"rows": 1.5}}}, "sum: rows is 1.5; expected int"),
    ],
)
def test_an_unknown_missing_or_mistyped_fact_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InternalError, match=f"echo_one.toml: .*{message}"):
        parsed(**more)


def test_a_section_that_a_backend_needs_is_named_if_it_is_missing() -> None:
    with pytest.raises(InternalError, match="target echo:one states no LlvmFacts"):
        parsed().section(LlvmFacts)


def test_a_chip_may_override_facts_of_its_vendor() -> None:
    wide, narrow = target_facts("rocm:gfx942"), target_facts("rocm:gfx1100")
    assert wide.section(GpuFacts).max_threads_per_block == 1024
    assert wide.section(GpuFacts).triton_arch == "gfx942"
    assert (wide.section(GpuFacts).warp_size, narrow.section(GpuFacts).warp_size) == (64, 32)


def test_every_accelerator_states_how_it_sorts_and_what_triton_may_write() -> None:
    for target in all_targets().values():
        is_accelerator = target.gpu is not None or target.local_buffer is not None
        assert (
            is_accelerator == (target.triton is not None) == (target.max_sorted_elems is not None)
        )
        assert is_accelerator == (target.llvm is None) == (target.processor is None)
        assert is_accelerator == (not target.updates_in_order)


def test_every_chip_states_how_its_memory_moves_data() -> None:
    for target in all_targets().values():
        memory = target.memory
        assert memory != MemoryFacts()
        assert memory.line_bytes % memory.sector_bytes == 0
        assert memory.cache_bytes >= 1 << 20
        assert (memory.tile_side_bytes is None) == (target.local_buffer is not None)


def test_kernel_names_fit_every_chip() -> None:
    limits = [target.max_kernel_name_chars for target in all_targets().values()]
    assert min(limit for limit in limits if limit is not None) == MAX_NAME_CHARS


def test_a_chip_has_the_facts_of_its_base_except_its_own() -> None:
    base, amd = target_facts("cpu:x86-64-v4"), target_facts("cpu:x86-64-v4-amd")
    assert amd.tiles is not None
    assert base.tiles is not None
    assert amd.tiles.f32 != base.tiles.f32
    assert (amd.llvm, amd.memory) == (base.llvm, base.memory)
    assert amd.few_rows is not None
    assert base.few_rows is not None
    assert amd.few_rows.wide_columns is not None
    assert base.few_rows.wide_columns is None
    assert amd.few_rows.wide != base.few_rows.wide
    processor = dataclasses.replace(amd.section(ProcessorFacts), maker=None)
    assert processor == base.section(ProcessorFacts)


def test_times_for_numbers_of_rows_are_a_chip_s_own_or_its_base_s() -> None:
    """A series was measured at once: it has no numbers of another chip in it."""
    base, amd = target_facts("cpu:x86-64-v4"), target_facts("cpu:x86-64-v4-amd")
    assert amd.few_rows is not None
    assert base.few_rows is not None
    assert amd.few_rows.wide is not None
    assert base.few_rows.wide is not None
    numbers = [{m for m, _ in facts.few_rows.wide.kernel} for facts in (amd, base)]
    assert "3" in numbers[1] - numbers[0]


def test_a_base_may_have_a_base() -> None:
    amd, dots = target_facts("cpu:x86-64-v4-amd"), target_facts("cpu:x86-64-v4-bf16-amd")
    assert dots.few_rows is not None
    assert amd.few_rows is not None
    assert dots.few_rows.wide == amd.few_rows.wide
    assert dots.few_rows.paired != amd.few_rows.paired
    assert dots.section(LlvmFacts).bf16_dots == "vdpbf16ps"
    assert dots.section(LlvmFacts).cpu == target_facts("cpu:x86-64-v4").section(LlvmFacts).cpu
    assert dots.tiles is not None
    assert amd.tiles is not None
    assert dots.tiles.f32 == amd.tiles.f32
    assert (dots.tiles.bf16 is None, amd.tiles.bf16 is None) == (False, True)
    assert set(amd.section(ProcessorFacts).flags) < set(dots.section(ProcessorFacts).flags)


def test_an_unknown_chip_or_vendor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTargetError, match="expected one of: rocm:gfx1100, rocm:gfx1201"):
        target_facts("rocm:gfx000")
    with pytest.raises(UnknownTargetError, match="expected one of: ascend, cpu, cuda, rocm"):
        vendor_facts("abacus")


def test_vendors_are_those_of_the_chips() -> None:
    assert list(all_vendors()) == sorted({target.vendor for target in all_targets().values()})


def run_with_chips(tmp_path: Path, files: dict[str, str], code: str) -> str:
    """What code writes to stderr in a process with a plug-in that adds files of chips."""
    chips = tmp_path / "new_chips"
    chips.mkdir()
    (chips / "__init__.py").touch()
    for name, text in files.items():
        (chips / name).write_text(text)
    info = tmp_path / "new_chips-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: new_chips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelfarm.targets]\nnew = new_chips\n")
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    return found.stderr


def test_a_chip_and_a_vendor_are_one_file_each(tmp_path: Path) -> None:
    """A package of files is all that a plug-in adds; a vendor's own file may be left out."""
    files = {
        "new.toml": (
            'name = "cuda:sm_990"\narch = "sm_990"\ntitle = "New"\n'
            "[gpu]\ntriton_arch = 990\nmax_shared_bytes = 1024\n"
        ),
        "other.toml": 'name = "other:one"\narch = "one"\ntitle = "Other"\n',
        "based.toml": 'name = "cuda:sm_991"\nbase = "cuda:sm_990"\ntitle = "A"\n',
        "again.toml": 'name = "cuda:sm_992"\nbase = "cuda:sm_991"\ntitle = "B"\n',
    }
    code = (
        "from kernelfarm.targets import *; from kernelfarm import targets as t\n"
        "assert t.target_facts('cuda:sm_990').gpu.warp_size == 32\n"
        "assert t.target_facts('cuda:sm_991').gpu == t.target_facts('cuda:sm_990').gpu\n"
        "assert t.target_facts('cuda:sm_992').gpu == t.target_facts('cuda:sm_990').gpu\n"
        "assert t.target_facts('cuda:sm_990').max_sorted_elems == 1024\n"
        "assert t.vendor_facts('other') == t.VendorFacts('other')\n"
        "assert {'cuda', 'other'} <= set(t.all_vendors())\n"
    )
    assert not run_with_chips(tmp_path, files, code)


@pytest.mark.parametrize("base", ["cuda:sm_991", "cuda:sm_990", "cuda:sm_1"])
def test_an_unknown_base_or_a_circle_of_bases_is_refused(tmp_path: Path, base: str) -> None:
    files = {
        "new.toml": f'name = "cuda:sm_990"\nbase = "{base}"\narch = "a"\ntitle = "A"\n',
        "other.toml": 'name = "cuda:sm_991"\nbase = "cuda:sm_990"\ntitle = "B"\n',
    }
    found = run_with_chips(tmp_path, files, "from kernelfarm.targets import *; all_targets()")
    assert f"base '{base}'; expected a chip, and no circle" in found or (
        "base 'cuda:sm_990'; expected a chip, and no circle" in found
    )


def test_a_vendor_without_a_file_has_the_defaults() -> None:
    assert VendorFacts("other").compile_cost == CompileCost()
    assert not VendorFacts("other").has_process_per_job


def test_chips_with_units_for_matrices_state_the_types_of_their_factors() -> None:
    by_types = {
        name: {dtype for dtype in ("f16", "bf16", "f32", "f64") if target.multiplies(dtype)}
        for name, target in all_targets().items()
        if target.has_matrix_units
    }
    assert by_types.pop("ascend:910b") == {"f16", "bf16", "f32"}
    assert {name.partition(":")[0] for name in by_types} == {"cuda", "rocm"}
    assert all(types == {"f16", "bf16"} for types in by_types.values())
