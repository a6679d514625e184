"""A chip is one file: each vendor compiles for a chip that only a TOML file describes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen_svc.backends.registry import find_backend
from kernelfarm import targets
from kernelfarm.ir.artifact import BuiltKernel
from tests.support.loop_kernels import emitter_shapes

# Chips that kernelfarm does not know, as a user would describe them.
CHIPS = {
    "cuda:sm_86": """
        arch = "sm_86"
        title = "NVIDIA A10"
        [gpu]
        triton_arch = 86
        max_shared_bytes = 101376
    """,
    "rocm:gfx1151": """
        arch = "gfx1151"
        title = "AMD Radeon 8060S"
        [gpu]
        triton_arch = "gfx1151"
        warp_size = 32
        max_shared_bytes = 65536
        max_registers = 256
    """,
    "cpu:x86-64-v2": """
        arch = "x86-64-v2"
        title = "x86-64 with SSE4.2"
        [llvm]
        triple = "x86_64-unknown-linux-gnu"
        cpu = "x86-64-v2"
        features = ""
        [processor]
        elf_machine = 62
        vector_bytes = 16
        flags = ["sse4_2"]
    """,
    "ascend:910b4": """
        arch = "Ascend910B4"
        title = "Huawei Ascend 910B4"
        [local_buffer]
        vector_cores = 40
        size_bytes = 65536
        alignment_bytes = 32
        [triton]
        has_f64 = false
        max_sort_elems = 1024
    """,
}


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that has nothing but one file for each chip."""
    package, info = tmp_path / "added_chips", tmp_path / "added_chips-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added_chips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelfarm.targets]\nadded = added_chips\n")
    for name, text in CHIPS.items():
        file = package / f"{name.replace(':', '_')}.toml"
        file.write_text(f'name = "{name}"\n{text}')
    monkeypatch.syspath_prepend(tmp_path)
    caches = (targets.all_targets, targets.all_vendors)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    sys.modules.pop("added_chips", None)


def built(name: str) -> tuple[BuiltKernel, ...]:
    facts = targets.target_facts(name)
    kernel = emitter_shapes.layer_norm_silu(rows=1000, width=1024)
    return find_backend(facts.vendor).build(kernel, facts)


def text(variant: BuiltKernel, stage: str) -> str:
    return next(s.content for s in variant.stages if s.name == stage).decode()


@pytest.mark.usefixtures("added")
def test_nvidias_toolchain_compiles_for_an_added_chip() -> None:
    for variant in built("cuda:sm_86"):
        assert ".target sm_86" in text(variant, "ptx")
        assert variant.launch.registers > 0


@pytest.mark.usefixtures("added")
def test_amds_toolchain_compiles_for_an_added_chip() -> None:
    for variant in built("rocm:gfx1151"):
        assert re.search(r'amdgcn_target ".*-gfx1151"', text(variant, "amdgcn"))
        assert variant.launch.warp_size == 32


@pytest.mark.usefixtures("added")
def test_llvm_compiles_for_an_added_processor_with_its_vector_width() -> None:
    (variant,) = built("cpu:x86-64-v2")
    assembly = text(variant, "asm")
    assert re.search(r"\baddps\b", assembly) and not re.search(r"%[yz]mm", assembly)
    assert dict(variant.launch.extras)["cpu_flags"] == "sse4_2"


@pytest.mark.usefixtures("added")
def test_ascends_tiling_follows_the_facts_of_an_added_chip() -> None:
    if not all(tool.is_found for tool in find_backend("ascend").tools() if tool.is_required):
        pytest.skip("NOT RUN: triton-adapter-opt")
    for variant in built("ascend:910b4"):
        tiling = json.loads(dict(variant.launch.extras)["tiling"])
        assert (tiling["vector_cores"], tiling["unified_buffer_limit_bytes"]) == (40, 65536)
        assert tiling["unified_buffer_bytes"] <= 65536
        # 25 rows for each of 40 cores.
        assert tiling["xblock"] >= 25 and -(-1000 // tiling["xblock"]) <= 40
