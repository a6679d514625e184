"""Clients of one farm, each with a disk tier of its own, behind a tampering proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.programs import finder
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
    """Machines that use one farm through a proxy, which counts calls and may change responses."""

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
        """The key that signs traces."""
        return read_signer(self.keys / TRACE_KEY, Space.TRACES)

    def machine(self, *, publishes: bool = False, disk: str = "", **settings: str) -> Path:
        """Switches to a machine with an empty disk, or with the disk `disk`; returns its folder."""
        self.machines += 1
        root = self.folder / (disk or f"disk-{self.machines}")
        new_process(self.endpoint, root)
        finder.accesses.clear()
        self.environment.setattr(finder, "_store", ProgramStore())
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
        """Compiles a new graph, checks its result, and returns the counters."""
        number = self.number
        function = lambda x: (x * number).sin().sum(0)  # noqa: E731 (it is what is compiled)
        assert_like_eager(function, lambda: (numbers(5, 7),), rtol=1e-5, **options)
        return counted()


def counted() -> dict[str, int]:
    return {name: times for name, times in counters.snapshot().items() if times}


def traces_made() -> int:
    """How many graphs were traced, by one run or by AOT Autograd."""
    long = int(torch._dynamo.utils.counters["aot_autograd"]["total"])
    return long + counters.snapshot().get("traced.short", 0)
