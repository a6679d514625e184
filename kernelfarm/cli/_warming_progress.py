"""Shows what a warming job does: a progress bar on a terminal, else one line for each event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from rich.progress import TaskID

    from kernelfarm.client.warming.cases import Case
    from kernelfarm.client.warming.requests import WarmedProgram


class WarmingProgress:
    """The events of a job on a console; rich makes its methods safe to call from threads."""

    def __init__(self, console: Console, bar: Progress | None, cases: int) -> None:
        self._console = console
        self._bar = bar
        self._programs = 0
        self._captures: TaskID | None = None
        self._asked: TaskID | None = None
        if bar is not None:
            self._captures = bar.add_task("captured", total=cases)
            self._asked = bar.add_task("programs", total=None)

    def captured(self, case: Case, programs: int, *, is_saved: bool) -> None:
        """A case was captured, or read from the folder of captures."""
        self._expect(programs)
        how = "capture of an earlier run" if is_saved else "captured"
        self._advance(self._captures, f"{case.title}: {how}, {programs} programs")

    def failed(self, case: Case, programs: int, reason: str) -> None:
        """A case cannot be captured."""
        self._expect(programs)
        if self._bar is not None and self._asked is not None:
            self._bar.advance(self._asked, programs)
        self._advance(self._captures, "")
        self._print(f"{case.title}: MISSING: {reason}")

    def warmed(self, case: Case, result: WarmedProgram) -> None:
        """The farm has a program, or refused it."""
        program, name = result.program, f"{case.title} {result.target}"
        if program is None:
            self._advance(self._asked, "")
            self._print(f"{name}: MISSING: {result.error}")
        else:
            what = f"{program.outcome}, {program.codegen_jobs} kernels compiled"
            self._advance(self._asked, f"{name}: {what}, trace {result.trace.state}")
        if result.trace.state == "missing":
            self._print(f"{name}: trace MISSING: {result.trace.reason}")

    def _expect(self, programs: int) -> None:
        self._programs += programs
        if self._bar is not None and self._asked is not None:
            self._bar.update(self._asked, total=self._programs)

    def _advance(self, task: TaskID | None, line: str) -> None:
        if self._bar is not None and task is not None:
            self._bar.advance(task)
        elif line:
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def shown_progress(cases: int) -> Iterator[WarmingProgress]:
    """The progress of a job with so many cases, on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield WarmingProgress(console, None, cases)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        yield WarmingProgress(console, bar, cases)
