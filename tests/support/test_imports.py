"""What tests, benchmarks and examples may import of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = r"((?:tests|benchmarks|examples)[\w.]*)"
# A search of the text also finds imports in programs that a test runs in a new process.
IMPORT = re.compile(rf"^\s*(?:from {PACKAGE} import (\w*)|import {PACKAGE})", re.MULTILINE)


def imports(folder: str) -> Iterator[tuple[str, str]]:
    """(importing module, imported module or its first imported name) for all files of a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        importer = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package, name, module in IMPORT.findall(path.read_text(encoding="utf-8")):
            yield importer, f"{package}.{name}" if package else module


def test_no_test_module_or_program_is_used_as_a_library() -> None:
    pairs = [pair for folder in ("tests", "benchmarks", "examples") for pair in imports(folder)]
    assert len(pairs) > 500
    parts = [(importer, part) for importer, imported in pairs for part in imported.split(".")]
    bad = [p for p in parts if p[1].startswith("test_") or p[1] in ("__main__", "conftest")]
    assert bad == []


def test_shared_helpers_import_only_shared_helpers() -> None:
    of_tests = [pair for pair in imports("tests/support") if pair[1].startswith("tests")]
    assert of_tests and [pair for pair in of_tests if not is_shared(pair[1])] == []


def test_tests_import_no_benchmarks_and_benchmarks_only_shared_helpers() -> None:
    assert [pair for pair in imports("tests") if pair[1].startswith("benchmarks")] == []
    of_tests = [pair for pair in imports("benchmarks") if pair[1].startswith("tests")]
    assert of_tests and [pair for pair in of_tests if not is_shared(pair[1])] == []


def test_examples_import_neither_tests_nor_benchmarks() -> None:
    pairs = list(imports("examples"))
    assert pairs and [pair for pair in pairs if not pair[1].startswith("examples")] == []


def is_shared(module: str) -> bool:
    return module == "tests.support" or module.startswith("tests.support.")
