"""Saves compiled programs as files: a folder for each target and kernel, and a manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledArtifact, CompiledProgram, StageContent
from kernelfarm.errors import CallerError, MalformedMessageError
from kernelfarm.ir.artifact import guard_text
from kernelfarm.wire.manifest import manifest_to_bytes

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


def save_programs(programs: Iterable[CompiledProgram], client: FarmClient, directory: Path) -> Path:
    """Writes stages, binaries and the manifest; returns the manifest's path.

    The files are `<target>/program/<stage>.txt` and `<target>/<kernel>/<kernel>[.variant].<stage>`,
    with a dash for the target's colon, and `content.bin` and `manifest.bin` beside the program's
    stages: the farm's messages. Existing files are overwritten.
    """
    entries = [_save_program(program, client, directory) for program in programs]
    path = directory / MANIFEST
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT_VERSION, "programs": entries}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_manifest(directory: Path) -> list[dict[str, Any]]:
    """The programs in a saved directory; file names are relative to the directory.

    Raises:
        CallerError: it has no manifest, or one of another format version.
    """
    path = directory / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CallerError(
            f"{directory} has no compiled programs: {error}; run `kernelfarm compile` first"
        ) from error
    if data.get("format") != FORMAT_VERSION:
        raise CallerError(
            f"{path} has format {data.get('format')!r}; expected {FORMAT_VERSION}: compile again"
        )
    programs: list[dict[str, Any]] = data["programs"]
    return programs


def _save_program(program: CompiledProgram, client: FarmClient, directory: Path) -> dict[str, Any]:
    files = _Files(program, client, directory)
    return {
        "target": program.target,
        "key": program.key.hex(),
        "outcome": program.outcome,
        "stages": {s.name: files.write("program", f"{s.name}.txt", s) for s in program.stages},
        "content": files.write_bytes("program", "content.bin", program.content),
        "signed": files.write_bytes("program", "manifest.bin", manifest_to_bytes(program.manifest)),
        "kernels": [
            _save_kernel(name, variants, files)
            for name, variants in zip(program.plan.kernel_names, program.kernels, strict=True)
        ],
    }


def _save_kernel(name: str, variants: Sequence[CompiledArtifact], files: _Files) -> dict[str, Any]:
    return {
        "name": name,
        "key": variants[-1].key.hex(),
        "variants": [
            # The general variant is the last one; its files have the plain name of the kernel.
            _save_artifact(a, name, name if a is variants[-1] else f"{name}.variant{n}", files)
            for n, a in enumerate(variants)
        ],
    }


def _save_artifact(
    artifact: CompiledArtifact, folder: str, stem: str, files: _Files
) -> dict[str, Any]:
    return {
        "binary": artifact.binary.name,
        "stages": {s.name: files.write(folder, f"{stem}.{s.name}", s) for s in artifact.stages},
        "symbol": artifact.launch.symbol,
        "guard": guard_text(artifact.guard),
        "is_stub": artifact.is_stub,
        "stub_reason": artifact.stub_reason,
        "toolchain": artifact.toolchain,
        "cost_ms": artifact.cost_ms,
        "notes": list(artifact.notes),
    }


class _Files:
    """Writes the contents of one program below its target's folder."""

    def __init__(self, program: CompiledProgram, client: FarmClient, directory: Path) -> None:
        self._directory = directory
        self._folder = Path(program.target.replace(":", "-"))
        artifacts = [artifact for variants in program.kernels for artifact in variants]
        stages = [*program.stages, *(stage for a in artifacts for stage in a.stages)]
        self._contents = client.read_blobs([stage.sha256 for stage in stages])

    def write(self, folder: str, name: str, content: StageContent) -> str:
        """Writes one stage; returns the file's name relative to the directory.

        Raises:
            MalformedMessageError: a name from the farm points outside the directory.
        """
        return self.write_bytes(folder, name, self._contents[content.sha256])

    def write_bytes(self, folder: str, name: str, data: bytes) -> str:
        """Writes one file, as `write` does."""
        path = self._folder / folder / name
        if path.is_absolute() or ".." in path.parts or len(path.parts) != 3:
            raise MalformedMessageError(
                f"the farm named a stage {path}; expected a plain file name"
            )
        target = self._directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return path.as_posix()
