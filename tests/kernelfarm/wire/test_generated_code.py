"""The committed generated code matches the protos."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TOOLS = Path(sys.executable).parent
FOLDERS = ("kernelfarm/v1", "kernelfarm/internal")


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=folder, capture_output=True, text=True, check=False
    )


def generated(root: Path) -> dict[str, bytes]:
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*_pb2*.py*")]
    sources = [file for file in files if file.suffix in (".py", ".pyi")]
    return {str(file.relative_to(root)): file.read_bytes() for file in sources}


def test_committed_code_is_what_the_protos_generate(tmp_path: Path) -> None:
    protos = ROOT / "protos"
    names = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    plugins = [f"--plugin={name}={TOOLS / name}" for name in names]
    outputs = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    outputs += [f"--mypy_out=quiet:{tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"]
    sources = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    compiler = (sys.executable, "-m", "grpc_tools.protoc", "-I", protos)
    done = run(*compiler, *plugins, *outputs, *sources)
    assert done.returncode == 0, done.stderr
    fresh, committed = generated(tmp_path), generated(ROOT)
    assert len(fresh) >= 4 * len(sources)
    assert sorted(fresh) == sorted(committed)
    stale = [name for name, content in fresh.items() if committed[name] != content]
    assert not stale, "run: make protos"


def test_protos_are_clean_under_buf() -> None:
    done = run(TOOLS / "buf", "lint", folder=ROOT / "protos")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
