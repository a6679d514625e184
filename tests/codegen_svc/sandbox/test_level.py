"""Demanded levels of the sandbox, and files that remain; without compilations."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from codegen_svc.sandbox.level import ConfinementLevel, Mechanism, check_level, required_mechanisms
from codegen_svc.sandbox.work_folder import WorkFolder
from codegen_svc.sandbox.zygote_process import scrubbed_environment
from kernelfarm.errors import UnavailableError
from tests.codegen_svc.sandbox.mechanisms import ALL


def test_the_environment_of_toolchains_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "KERNELFARM_CACHE_URL",
        "REDIS_PASSWORD",
        "GITHUB_TOKEN",
        "AWS_SESSION",
        "API_KEY",
    ):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("TRITON_CONSTANT", "kept")
    assert "hidden" not in scrubbed_environment().values()
    assert scrubbed_environment()["TRITON_CONSTANT"] == "kept"


def test_the_next_worker_removes_the_folder_of_a_killed_one_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = "import os; from codegen_svc.sandbox.work_folder import WorkFolder as F; f = F()"
    code += "; (f.path / 'left').touch(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = tmp_path.iterdir()
    mine = WorkFolder()
    assert not left.exists()
    other = WorkFolder()
    assert mine.is_there()
    assert other.is_there()
    mine.remove()
    other.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["required:", "required:magic", "weakest", "landlock"])
def test_a_setting_with_an_unknown_level_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(setting))):
        required_mechanisms(setting)


def test_a_level_below_the_demanded_one_is_refused_by_name() -> None:
    some = ConfinementLevel(frozenset({Mechanism.SECCOMP, Mechanism.LIMITS}))
    check_level(some, "strongest")
    check_level(some, "required:seccomp+limits")
    with pytest.raises(UnavailableError, match="demands namespaces, landlock too"):
        check_level(some, f"required:{ALL}")
