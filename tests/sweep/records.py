"""What the sweep writes down: one JSON line for each sample, and one when a task is done."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.sweep.samples import Task


class Outcome(enum.Enum):
    """What became of a sample; the value is the word in files and reports."""

    NATIVE = "native"
    MIXED = "mixed"
    EXTERN = "extern"
    UNTRACEABLE = "untraceable"
    RAISES = "raises"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASH = "crash"
    HANG = "hang"


RIGHT = frozenset({Outcome.NATIVE, Outcome.MIXED, Outcome.EXTERN})
BROKEN = frozenset({Outcome.WRONG, Outcome.CRASH, Outcome.HANG})


@dataclass(frozen=True, slots=True)
class Record:
    """One sample of one task. `externs` names the operators that the framework ran."""

    op: str
    dtype: str
    mode: str
    sample: int
    seed: int
    outcome: Outcome
    reason: str = ""
    launches: int = 0
    externs: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def task(self) -> Task:
        """The task that it belongs to."""
        return Task(self.op, self.dtype, self.mode)

    def line(self) -> str:
        """The record as one line of JSON."""
        return json.dumps({**asdict(self), "outcome": self.outcome.value})


def record_from(fields: dict[str, Any]) -> Record:
    """The record of a line's fields."""
    outcome, externs = Outcome(fields["outcome"]), tuple(fields["externs"])
    return Record(**{**fields, "outcome": outcome, "externs": externs})


def done_line(task: Task) -> str:
    """Says that a task has no further samples."""
    return json.dumps({**asdict(task), "done": True})


class ResultFile:
    """A file of records that grows; the last record of a sample counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: str) -> None:
        """Writes one line through to the disk, so that a killed sweep loses nothing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def records(self) -> list[Record]:
        """The last record of each sample of tasks, in the order in which samples came first."""
        found: dict[tuple[Task, int], Record] = {}
        for fields in self._lines():
            if "done" not in fields:
                record = record_from(fields)
                found[record.task, record.sample] = record
        return list(found.values())

    def done(self) -> set[Task]:
        """Tasks without open samples."""
        return {_task(fields) for fields in self._lines() if "done" in fields}

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)


def _task(fields: dict[str, Any]) -> Task:
    return Task(fields["op"], fields["dtype"], fields["mode"])
