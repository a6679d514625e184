"""Process ids, restarts and memory of a farm's processes, and their changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import process_tree, rss_bytes

SOCKETS = {
    "kernelfarm.internal.v1.OptimizerService": ("optimizer", "KERNELFARM_OPTIMIZER_LISTEN"),
    "kernelfarm.internal.v1.CodegenService": ("codegen", "KERNELFARM_CODEGEN_LISTEN"),
}
"""The child of each internal service, and the variable with its address."""


@dataclass(slots=True)
class FarmState:
    """The children of a farm at the start, and the largest memory of each since."""

    data_dir: Path
    first: dict[str, tuple[int, int]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    last_bytes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = {n: (c["pid"], c["restarts"]) for n, c in self._children().items()}

    def addresses(self) -> dict[str, str]:
        """Addresses of the internal services, by full names."""
        children = self._children()
        return {
            service: psutil.Process(children[child]["pid"]).environ()[variable]
            for service, (child, variable) in SOCKETS.items()
        }

    def measure(self) -> None:
        """Measures the memory of each child with its descendants."""
        for name, child in self._children().items():
            held = rss_bytes(process_tree(child["pid"]))
            self.last_bytes[name] = held
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), held)

    def changes(self) -> list[str]:
        """Children that were restarted or replaced since the start."""
        return [
            f"{name}: process {was[0]} with {was[1]} restarts is now {child['pid']} with"
            f" {child['restarts']}"
            for name, child in self._children().items()
            if (was := self.first[name]) != (child["pid"], child["restarts"])
        ]

    def _children(self) -> dict[str, Any]:
        children: dict[str, Any] = json.loads((self.data_dir / "farm.json").read_text())["children"]
        return children
