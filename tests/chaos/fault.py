"""What a fault is: how it begins, how long it lasts, how it is undone, and where it applies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.farm_under_test import Ground

Undo = Callable[[], None]


@dataclass
class Scene:
    """What faults work on; `notes` is what a fault tells beside its times."""

    ground: Ground
    dice: random.Random
    ask_for_slow_programs: Callable[[], None]
    notes: list[str] = field(default_factory=list)

    def keep_workers_busy(self) -> None:
        """Returns when slow programs were asked for and workers had time to begin them."""
        self.ask_for_slow_programs()
        time.sleep(1.0)


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    `begin` returns what undoes it, or None. It is undone after `lasts_s`, and service must be back
    within the limit from then on. A fault that `must_be_repaired` lasts until service is back
    without anybody's help, within the limit from its beginning.
    """

    name: str
    begin: Callable[[Scene], Undo | None]
    lasts_s: float = 0.0
    must_be_repaired: bool = False
    can_happen: Callable[[Ground], bool] = lambda ground: True
