"""Machines that ask one farm through a proxy, each with a disk tier of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfarm.client import counters, torch_backend
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.signing import Signer, Space
from kernelfarm.signing.key_files import TRACE_KEY, read_signer
from tests.support.client_process import new_process
from tests.support.farm import Farm
from tests.support.like_eager import assert_like_eager, numbers
from tests.support.tampering_proxy import TamperingFarm

_numbers = iter(range(1000))


@dataclass
class Fleet:
    """Machines that ask one farm, through somebody who counts and may change what it answers."""

    farm: Farm
    meddling: TamperingFarm
    endpoint: str
    folder: Path
    environment: pytest.MonkeyPatch
    number: float = field(default_factory=lambda: next(_numbers) + 0.375)
    machines: int = 0

    @property
    def keys(self) -> Path:
        return self.farm.data_dir / "keys"

    def signer(self) -> Signer:
        """Who may sign traces."""
        return read_signer(self.keys / TRACE_KEY, Space.TRACES)

    def machine(self, *, publishes: bool = False, disk: str = "", **settings: str) -> Path:
        """Begins a machine, with an empty disk unless that of another is named; its disk."""
        self.machines += 1
        root = self.folder / (disk or f"disk-{self.machines}")
        new_process(self.endpoint, root)
        torch_backend._accesses.clear()
        self.environment.setattr(torch_backend, "_store", ProgramStore())
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        stated = {"ENDPOINT": self.endpoint, "DISK_CACHE_DIR": str(root), **settings}
        if publishes:
            stated["TRACE_KEY_FILE"] = str(self.keys / TRACE_KEY)
        for name in ("TRACE_KEY_FILE", "TRUSTED_KEYS_FILE", "MODEL", "MODE", "DISK_CACHE_BYTES"):
            self.environment.delenv(f"KERNELFARM_{name}", raising=False)
        for name, value in stated.items():
            self.environment.setenv(f"KERNELFARM_{name}", value)
        self.meddling.calls.clear()
        return root

    def works(self, **options: Any) -> dict[str, int]:
        """Compiles a graph of its own, sees that it is right, and gives the counters."""
        number = self.number
        function = lambda x: (x * number).sin().sum(0)  # noqa: E731 (it is what is compiled)
        assert_like_eager(function, lambda: (numbers(5, 7),), rtol=1e-5, **options)
        return counted()


def counted() -> dict[str, int]:
    return {name: times for name, times in counters.snapshot().items() if times}


def traces_made() -> int:
    """Graphs that AOT Autograd traced."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["total"])
