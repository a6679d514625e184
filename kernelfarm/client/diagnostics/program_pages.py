"""The pages of compiled programs: of an exported model, a cached program or a saved directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelfarm.client.capture.exported import read_pt2
from kernelfarm.client.compile_model import compile_exported, connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.programs.saved_files import read_manifest
from kernelfarm.errors import CallerError, NotFoundError
from kernelfarm.pages.program_facts import ProgramFacts, program_facts
from kernelfarm.pages.program_view import ProgramView, program_view
from kernelfarm.signing import check_content
from kernelfarm.wire.manifest import manifest_from_bytes

MAX_FILE_BYTES = 256 * 1024 * 1024
"""The largest file of a saved directory that is read."""


def views_of_pt2(
    path: Path, targets: Sequence[str] | None, endpoint: str | None
) -> list[ProgramView]:
    """The views of an exported model, compiled for the targets (default: this machine's CPU).

    Raises:
        KernelfarmError: the farm does not answer or refuses.
    """
    client = connect(endpoint, None)
    compiled = compile_exported(read_pt2(path), targets=targets, client=client)
    return [_view(program, client) for program in compiled.programs.values()]


def view_of_key(key: bytes, endpoint: str | None) -> ProgramView:
    """The view of a program in the farm's cache.

    Raises:
        NotFoundError: the farm's cache does not have it.
    """
    client = connect(endpoint, None)
    return _view(client.lookup(key), client)


def views_of_directory(directory: Path, targets: Sequence[str] | None) -> list[ProgramView]:
    """The views of a directory that `kernelfarm compile` wrote, without a farm.

    Raises:
        CallerError: a file is missing or too large, or an older version wrote the directory.
        IntegrityError: a program is not the one that its manifest names.
    """
    programs = [p for p in read_manifest(directory) if not targets or p["target"] in targets]
    if not programs:
        raise CallerError(f"{directory} has no program for {', '.join(targets or ['any target'])}")
    return [_saved_view(directory, program) for program in programs]


def _view(program: CompiledProgram, client: FarmClient) -> ProgramView:
    found = f"{program.outcome} in the {program.tier}" if program.tier else program.outcome
    is_checked = client.settings.signing == "required"
    checked = "valid: this client trusts the key" if is_checked else "not checked (SIGNING=off)"
    facts = program_facts(program.content, program.manifest, found, checked)
    return program_view(facts, client.read_blobs)


def _saved_view(directory: Path, program: Mapping[str, Any]) -> ProgramView:
    if "content" not in program or "signed" not in program:
        raise CallerError(
            f"{directory} was written by an older version, without the farm's messages: compile"
            " again, or pass the program's key"
        )
    manifest = manifest_from_bytes(_read(directory, program["signed"]))
    content = _read(directory, program["content"])
    check_content(manifest, content)
    facts = program_facts(content, manifest, "saved directory", "not checked: read from files")
    return program_view(facts, _saved_blobs(directory, program, facts))


def _saved_blobs(directory: Path, program: Mapping[str, Any], facts: ProgramFacts) -> Any:
    files = {stage.sha256: program["stages"][stage.name] for stage in facts.stages}
    for saved, variants in zip(program["kernels"], facts.kernels, strict=True):
        for paths, variant in zip(saved["variants"], variants, strict=True):
            files.update({stage.sha256: paths["stages"][stage.name] for stage in variant.stages})

    def read(digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return {sha256: _read(directory, files[sha256]) for sha256 in digests}

    return read


def _read(directory: Path, name: str) -> bytes:
    path = directory / name
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise CallerError(f"{path} has {size_bytes} bytes; expected <= {MAX_FILE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror}; compile again") from error
