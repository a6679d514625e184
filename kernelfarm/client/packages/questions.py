"""The calls on this machine for which no package was found; `explain-miss --packages` shows them.

One file for each digest, in the disk tier's folder of traces, which sweeps keep within its limit.
This module needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernelfarm.client.disk.files import read_sealed, remove, write_sealed
from kernelfarm.client.disk.sweep import QUESTION
from kernelfarm.digest import trace_digest
from kernelfarm.errors import MalformedMessageError

_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question (`call_facts.Question`) without a package; `refusal` says why one was refused.

    `asked_s` is the last time, in seconds since 1970.
    """

    digest: bytes
    parts: Mapping[str, str]
    facts: Mapping[str, str]
    refusal: str
    asked_s: float


class Questions:
    """The files below the root of a disk tier."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "traces"

    def put(self, parts: Mapping[str, str], facts: Mapping[str, str], refusal: str) -> None:
        """Records a question; failures to write and very long ones are ignored."""
        stated = {"parts": dict(parts), "facts": dict(facts), "refusal": refusal}
        content = json.dumps(stated).encode()
        if len(content) <= _MAX_BYTES:
            with suppress(OSError):  # it serves diagnostics only
                write_sealed(self._path(trace_digest(parts)), content)

    def drop(self, digest: bytes) -> None:
        """Removes a question."""
        path = self._path(digest)
        if path.exists():
            remove(path)

    def all(self) -> list[Unanswered]:
        """The questions, the last asked first; skips files that cannot be used."""
        found = []
        for path in self._folder.glob(f"*/*{QUESTION}"):
            try:
                asked_s = path.stat().st_mtime
                stated = json.loads(read_sealed(path))
                digest = trace_digest(stated["parts"])
                question = Unanswered(
                    digest, stated["parts"], stated["facts"], str(stated["refusal"]), asked_s
                )
            except (OSError, ValueError, KeyError, TypeError, MalformedMessageError):
                continue
            if digest.hex() == path.stem:
                found.append(question)
        return sorted(found, key=lambda question: question.asked_s, reverse=True)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._folder / name[:2] / f"{name}{QUESTION}"
