"""The stages of compiled programs: of an exported model, a cached program or a saved directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.client.capture.exported import read_pt2
from kernelfarm.client.compile_model import compile_exported, connect
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram, StageContent
from kernelfarm.client.programs.saved_files import read_manifest
from kernelfarm.errors import CallerError
from kernelfarm.ir.artifact import guard_text


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """One stage of a program (`kernel` is empty) or of a kernel's variant; text on demand."""

    target: str
    kernel: str
    variant: str
    stage: str
    text: Callable[[], str]

    def title(self) -> str:
        """One line that names target, kernel, variant and stage."""
        where = f"{self.kernel}{self.variant}" if self.kernel else "program"
        return f"{self.target} / {where} / {self.stage}"


def of_pt2(
    path: Path, targets: Sequence[str] | None, endpoint: str | None
) -> Iterator[ExplainedStage]:
    """The stages of an exported model, compiled for the targets (default: this machine's CPU)."""
    client = connect(endpoint, None)
    compiled = compile_exported(read_pt2(path), targets=targets, client=client)
    for program in compiled.programs.values():
        yield from _of_program(program, client)


def of_key(key: bytes, endpoint: str | None) -> Iterator[ExplainedStage]:
    """The stages of a program in the farm's cache.

    Raises:
        NotFoundError: the farm's cache does not have it.
    """
    client = connect(endpoint, None)
    yield from _of_program(client.lookup(key), client)


def of_directory(directory: Path) -> Iterator[ExplainedStage]:
    """The stages of a directory that `kernelfarm compile` wrote.

    Raises:
        CallerError: the directory has no manifest, or one of its files is missing.
    """
    for program in read_manifest(directory):
        target = program["target"]
        for stage, name in program["stages"].items():
            yield _of_file(target, "", "", stage, directory / name)
        for kernel in program["kernels"]:
            guards = [variant["guard"] for variant in kernel["variants"]]
            yield _of_guards(target, kernel["name"], guards)
            for number, variant in enumerate(kernel["variants"]):
                mark = _variant_mark(number, len(kernel["variants"]))
                yield from _of_notes(target, kernel["name"], mark, variant["notes"])
                for stage, name in variant["stages"].items():
                    yield _of_file(target, kernel["name"], mark, stage, directory / name)


def _of_program(program: CompiledProgram, client: FarmClient) -> Iterator[ExplainedStage]:
    for content in program.stages:
        yield _of_content(program.target, "", "", content, client)
    for name, variants in zip(program.plan.kernel_names, program.kernels, strict=True):
        yield _of_guards(program.target, name, [guard_text(a.guard) for a in variants])
        for number, artifact in enumerate(variants):
            mark = _variant_mark(number, len(variants))
            yield from _of_notes(program.target, name, mark, artifact.notes)
            for content in artifact.stages:
                yield _of_content(program.target, name, mark, content, client)


def _of_guards(target: str, kernel: str, guards: Sequence[str]) -> ExplainedStage:
    marks = [_variant_mark(n, len(guards)) or " (general)" for n in range(len(guards))]
    lines = [f"{mark[2:-1]}: {guard}" for mark, guard in zip(marks, guards, strict=True)]
    return ExplainedStage(target, kernel, "", "guards", lambda: "\n".join(lines))


def _of_notes(
    target: str, kernel: str, mark: str, notes: Sequence[str]
) -> Iterator[ExplainedStage]:
    """The notes of the toolchain about a variant, such as hints that it followed."""
    if notes:
        yield ExplainedStage(target, kernel, mark, "notes", lambda: "\n".join(notes))


def _variant_mark(number: int, count: int) -> str:
    return "" if number == count - 1 else f" (variant {number})"


def _of_content(
    target: str, kernel: str, mark: str, content: StageContent, client: FarmClient
) -> ExplainedStage:
    def text() -> str:
        if not content.is_text:
            return _binary_note(content.size_bytes)
        return client.read_blobs([content.sha256])[content.sha256].decode("utf-8")

    return ExplainedStage(target, kernel, mark, content.name, text)


def _of_file(target: str, kernel: str, mark: str, stage: str, path: Path) -> ExplainedStage:
    def text() -> str:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CallerError(f"{path}: {error}; compile again") from error
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return _binary_note(len(data))

    return ExplainedStage(target, kernel, mark, stage, text)


def _binary_note(size_bytes: int) -> str:
    return f"(binary, {size_bytes} bytes)"
