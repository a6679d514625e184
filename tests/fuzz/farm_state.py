"""What the processes of a farm are, and whether they hold: restarts, process ids, memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SOCKETS = {
    "kernelfarm.internal.v1.OptimizerService": ("optimizer", "KERNELFARM_OPTIMIZER_LISTEN"),
    "kernelfarm.internal.v1.CodegenService": ("codegen", "KERNELFARM_CODEGEN_LISTEN"),
}
"""Which child serves an internal service, and the variable that says where it listens."""


@dataclass(slots=True)
class FarmState:
    """The children of a farm as they were at first, and the most memory that each took since."""

    data_dir: Path
    first: dict[str, tuple[int, int]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    last_bytes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = {n: (c["pid"], c["restarts"]) for n, c in self._children().items()}

    def addresses(self) -> dict[str, str]:
        """Where the internal services listen, by their full names."""
        children = self._children()
        return {
            service: psutil.Process(children[child]["pid"]).environ()[variable]
            for service, (child, variable) in SOCKETS.items()
        }

    def look(self) -> None:
        """Measures the memory of each child, with that of its own children."""
        for name, child in self._children().items():
            held = sum(_rss(process) for process in _tree(child["pid"]))
            self.last_bytes[name] = held
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), held)

    def changes(self) -> list[str]:
        """Which children are not those of the start."""
        return [
            f"{name}: process {was[0]} with {was[1]} restarts is now {child['pid']} with"
            f" {child['restarts']}"
            for name, child in self._children().items()
            if (was := self.first[name]) != (child["pid"], child["restarts"])
        ]

    def _children(self) -> dict[str, Any]:
        children: dict[str, Any] = json.loads((self.data_dir / "farm.json").read_text())["children"]
        return children


def _tree(pid: int | None) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
