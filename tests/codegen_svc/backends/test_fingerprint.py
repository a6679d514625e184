"""The fingerprint of a toolchain covers everything that changes what it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen_svc.backends.cuda.backend import BACKEND as CUDA


@pytest.mark.parametrize(
    ("name", "value"),
    [("DISABLE_LLVM_OPT", "1"), ("DISABLE_PTXAS_OPT", "1"), ("PTXAS_OPTIONS", "-O1")],
)
def test_settings_that_change_what_triton_compiles_change_the_fingerprint(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = CUDA.fingerprint()
    monkeypatch.setenv(name, value)
    assert CUDA.fingerprint() != before


def test_a_named_tool_counts_by_its_content_and_not_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = set()
    for position, content in (("a", b"ptxas 1"), ("b", b"ptxas 1"), ("c", b"ptxas 2")):
        (tmp_path / position).write_bytes(content)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / position))
        seen.add(CUDA.fingerprint())
    assert len(seen) == 2
