"""Shared code asks for facts of a target, never for the name of a vendor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelfarm.targets import all_vendors

ROOT = Path(__file__).parents[3]
SHARED = ("codegen_svc", "optimizer_svc", "frontend_svc", "kernelfarm")
BACKENDS = ROOT / "codegen_svc" / "backends"
# PyTorch's names of kinds of devices; loaders and capture compare devices with them.
DEVICE_TYPES = {"cpu", "cuda"}
# Generated from the protos.
GENERATED = ("kernelfarm/v1", "kernelfarm/internal")


def shared_files() -> Iterator[Path]:
    own = [BACKENDS / vendor for vendor in all_vendors()]
    for package in SHARED:
        for path in sorted((ROOT / package).rglob("*.py")):
            is_generated = path.relative_to(ROOT).as_posix().startswith(GENERATED)
            if not is_generated and not any(folder in path.parents for folder in own):
                yield path


def vendor_names(source: str, vendors: set[str]) -> list[tuple[int, str]]:
    """Line and text of each string that is a vendor's name or begins a chip's descriptor."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (node.value in vendors or any(node.value == f"{vendor}:" for vendor in vendors))
    ]


@pytest.mark.parametrize("package", SHARED)
def test_shared_code_names_no_vendor(package: str) -> None:
    found = []
    for path in shared_files():
        name = path.relative_to(ROOT)
        if name.parts[0] != package:
            continue
        is_client = name.parts[:2] == ("kernelfarm", "client")
        vendors = set(all_vendors()) - (DEVICE_TYPES if is_client else set())
        found += [(str(name), *hit) for hit in vendor_names(path.read_text("utf-8"), vendors)]
    assert not found, "ask for a fact of the target (kernelfarm/targets) instead"


def test_names_of_vendors_are_found_in_comparisons_and_tables() -> None:
    source = 'a = vendor != "cuda"\nb = {"rocm": 3}\nc = t.startswith("cpu:")\nd = "cuda:sm_80"\n'
    lines = [line for line, _ in vendor_names(source, {"cpu", "cuda", "rocm"})]
    assert lines == [1, 2, 3]
