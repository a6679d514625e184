"""Captures on disk: read as written, and not read if another user may have written them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelfarm.client.traces.publication import Epoch
from kernelfarm.client.warming.captures import (
    CapturedCaseGraph,
    CapturedTrace,
    CaptureFolder,
    CaseCapture,
    identity_of,
)
from kernelfarm.errors import CallerError

CAPTURE = CaseCapture(
    graphs=(
        CapturedCaseGraph(
            graph=bytes(range(256)),
            device="cpu",
            trace=CapturedTrace(entry=b"\xff\xfe", made_in=Epoch("ab" * 16, 7)),
        ),
        CapturedCaseGraph(graph=b"", device="cuda", no_trace="a reason"),
    )
)


def test_a_capture_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = CaptureFolder.open(tmp_path / "captures")
    folder.put("a" * 64, CAPTURE)
    assert CaptureFolder.open(tmp_path / "captures").get("a" * 64) == CAPTURE
    assert folder.get("b" * 64) is None


def test_a_damaged_capture_is_captured_again(tmp_path: Path) -> None:
    folder = CaptureFolder.open(tmp_path)
    folder.put("a" * 64, CAPTURE)
    (path,) = tmp_path.iterdir()
    for damaged in (path.read_bytes()[:-1], b"", b"{}"):
        path.write_bytes(damaged)
        assert folder.get("a" * 64) is None


def test_a_capture_under_another_name_is_not_used(tmp_path: Path) -> None:
    folder = CaptureFolder.open(tmp_path)
    folder.put("a" * 64, CAPTURE)
    (tmp_path / f"{'a' * 64}.capture").rename(tmp_path / f"{'b' * 64}.capture")
    assert folder.get("b" * 64) is None


def test_a_capture_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = CaptureFolder.open(tmp_path)
    folder.put("a" * 64, CAPTURE)
    (path,) = tmp_path.iterdir()
    path.chmod(0o666)
    assert folder.get("a" * 64) is None


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CallerError, match="cannot make the folder"):
        CaptureFolder.open(tmp_path / "file" / "captures")


def test_an_identity_depends_on_every_fact() -> None:
    assert identity_of({"a": 1, "b": 2}) == identity_of({"b": 2, "a": 1})
    assert identity_of({"a": 1}) != identity_of({"a": 2})
