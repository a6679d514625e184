"""`examples/node_client`: a program is compiled by Node.js from the protos alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.farm import TIMEOUT_S, Farm
from tests.support.third_party import need

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.third_party


def test_the_lock_file_pins_every_package_by_digest_and_names_no_registry() -> None:
    lock = json.loads((EXAMPLES / "node_client" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert "node_modules/@grpc/grpc-js" in packages
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


@pytest.mark.slow  # npm installs 33 packages
def test_a_saved_graph_is_compiled_and_saved(farm: Farm, tmp_path: Path) -> None:
    need("node", "npm")
    copy = tmp_path / "examples" / "node_client"
    shutil.copytree(EXAMPLES / "node_client", copy, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(EXAMPLES / "graphs", tmp_path / "examples" / "graphs")
    shutil.copytree(EXAMPLES.parent / "protos", tmp_path / "protos")
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=copy)
    out = run("node", "main.js", "--endpoint", farm.endpoint, "--out", "out", folder=copy)
    assert "stage codegen cpu:x86-64-v3" in out or "stage lookup cpu:x86-64-v3" in out
    binaries = list((copy / "out" / "cpu-x86-64-v3").glob("*.so"))
    assert binaries
    for binary in binaries:
        assert binary.read_bytes().startswith(b"\x7fELF")
    wrong = subprocess.run(
        ["node", "main.js", "--endpoint", farm.endpoint, "--target", "cuda:sm_1"],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert wrong.returncode == 1
    assert "cuda:sm_1" in wrong.stderr and "cuda:sm_90a" in wrong.stderr


def run(*command: str, folder: Path) -> str:
    """The output of a command; if it fails, the test fails with its error output."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
