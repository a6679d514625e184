"""One farm under load, hurt by one fault after the other, in an order that a seed gives."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.call_journal import WRONG
from tests.chaos.farm_under_test import Ground
from tests.chaos.fault import Fault, Scene
from tests.chaos.grpc_load import PROBE
from tests.chaos.load_clients import Call, Crowd, now_s, usual_load

SERVICE_LIMIT_S = 30.0
OUR_BUGS = frozenset({"INTERNAL", "UNKNOWN"})
"""Statuses that no fault excuses."""
_GIVE_UP_S = 75.0
_FIRST_SERVICE_S = 180.0
_REST_S = 3.0
_POLL_S = 0.2


@dataclass
class Episode:
    """One fault and what came of it; `service_s` is None if service did not come back."""

    fault: str
    layout: str
    service_s: float | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restarts: int = 0

    @property
    def holds(self) -> bool:
        """True if every rule was kept."""
        is_served = self.service_s is not None and self.service_s <= SERVICE_LIMIT_S
        return is_served and not (self.wrong or self.late or self.bugs)


class ChaosRun:
    """Faults on one ground."""

    def __init__(self, ground: Ground, layout: str, seed: int, folder: Path) -> None:
        self._ground = ground
        self._layout = layout
        self._seed = seed
        self._folder = folder
        self._dice = random.Random(f"{seed} {layout}")
        self.dead_clients: list[str] = []

    def run(self, faults: Sequence[Fault], goes_on: Callable[[], bool]) -> Iterator[Episode]:
        """Episodes, as they end, while `goes_on`: all faults in random order, then all again."""
        load = usual_load(self._ground, self._seed)
        with Crowd(self._ground, load, self._folder) as crowd:
            began_s = now_s()
            if self._await_service(crowd, began_s, _FIRST_SERVICE_S) is None:
                raise RuntimeError(f"the farm does not serve; see {self._folder}")
            while goes_on():
                for fault in self._dice.sample(list(faults), len(faults)):
                    if not goes_on():
                        break
                    if fault.can_happen(self._ground):
                        yield self._episode(crowd, fault)
            self.dead_clients = crowd.dead()

    def _episode(self, crowd: Crowd, fault: Fault) -> Episode:
        episode = Episode(fault.name, self._layout)
        scene = Scene(self._ground, self._dice, crowd.ask_for_slow_programs, episode.notes)
        restarts, began_s = self._ground.restarts(), now_s()
        undo = fault.begin(scene)
        counts_from_s = began_s
        if not fault.must_be_repaired:
            time.sleep(fault.lasts_s)
            if undo is not None:
                undo()
            counts_from_s = now_s()
        served_s = self._await_service(crowd, counts_from_s, _GIVE_UP_S)
        if fault.must_be_repaired and undo is not None:
            undo()
        if served_s is None:
            self._start_anew(crowd, episode)
        else:
            episode.service_s = served_s - counts_from_s
        time.sleep(_REST_S)
        add_calls(episode, crowd.calls(began_s), now_s())
        crowd.replace_stuck()
        episode.restarts = max(0, self._ground.restarts() - restarts)
        return episode

    def _start_anew(self, crowd: Crowd, episode: Episode) -> None:
        """What is lost is started again, so that the next fault meets a farm that serves."""
        episode.notes.append("the farm did not serve again and was started anew")
        self._ground.kill()
        self._ground.start()
        if self._await_service(crowd, now_s(), _FIRST_SERVICE_S) is None:
            raise RuntimeError(f"a farm that was started anew does not serve; see {self._folder}")

    @staticmethod
    def _await_service(crowd: Crowd, since_s: float, timeout_s: float) -> float | None:
        """When new programs were compiled again; None if not in time."""
        while now_s() - since_s < timeout_s:
            served_s = crowd.service_s(PROBE, since_s)
            if served_s is not None:
                return served_s
            time.sleep(_POLL_S)
        return None


def add_calls(episode: Episode, calls: Sequence[Call], time_s: float) -> None:
    """Adds what calls tell to an episode; `time_s` is now."""
    for call in calls:
        if call.is_late(time_s) and not call.is_told:
            call.is_told = True
            took_s = (call.end_s or time_s) - call.begin_s
            episode.late.append(f"{call.source}: {call.kind}: {took_s:.1f} s, {call.status}")
        if call.end_s is None:
            continue
        episode.statuses[call.status] += 1
        episode.right += call.verdict == "right"
        if call.status in OUR_BUGS:
            episode.bugs.append(f"{call.source}: {call.kind}: {call.status}: {call.detail}")
        if call.verdict == WRONG:
            episode.wrong.append(f"{call.source}: {call.kind}: {call.detail}")


def tell(line: str) -> None:
    """A line about progress, on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
