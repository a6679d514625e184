"""A fault: how it begins, how long it lasts, how it is undone, and where it applies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.farm_under_test import FarmUnderTest

Undo = Callable[[], None]


@dataclass
class FaultContext:
    """The farm and random choices of a fault; `notes` are remarks for the report."""

    farm: FarmUnderTest
    dice: random.Random
    ask_for_slow_programs: Callable[[], None]
    notes: list[str] = field(default_factory=list)

    def keep_workers_busy(self) -> None:
        """Requests slow programs, and waits until workers have had time to begin them."""
        self.ask_for_slow_programs()
        time.sleep(1.0)


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    `begin` returns the function that undoes it, or None. It is undone after `lasts_s`, and the farm
    must serve again within the limit from then on. A fault that `must_be_repaired` lasts until the
    farm has repaired it itself, within the limit from its beginning.
    """

    name: str
    begin: Callable[[FaultContext], Undo | None]
    lasts_s: float = 0.0
    must_be_repaired: bool = False
    can_happen: Callable[[FarmUnderTest], bool] = lambda farm: True
