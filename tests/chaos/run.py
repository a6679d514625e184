"""One farm under load, with one fault after another, in an order that the seed determines."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.call_journal import WRONG
from tests.chaos.farm_under_test import FarmUnderTest
from tests.chaos.fault import Fault, FaultContext
from tests.chaos.grpc_load import PROBE
from tests.chaos.load_clients import Call, LoadClients, LoadProcess, now_s, usual_load

SERVICE_LIMIT_S = 30.0
OUR_BUGS = frozenset({"INTERNAL", "UNKNOWN"})
"""Statuses that no fault may cause."""
_GIVE_UP_S = 75.0
_FIRST_SERVICE_S = 180.0
_REST_S = 3.0
_POLL_S = 0.2


@dataclass
class Episode:
    """One fault and its results; `service_s` is None if the farm did not serve again."""

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
        """True if the episode broke no rule."""
        is_served = self.service_s is not None and self.service_s <= SERVICE_LIMIT_S
        return is_served and not (self.wrong or self.late or self.bugs)


class ChaosRun:
    """Injects faults into one farm, under a load, by default the usual one."""

    def __init__(
        self,
        farm: FarmUnderTest,
        layout: str,
        seed: int,
        folder: Path,
        load: Sequence[LoadProcess] = (),
    ) -> None:
        self._farm = farm
        self._layout = layout
        self._folder = folder
        self._load = load or usual_load(farm, seed)
        self._dice = random.Random(f"{seed} {layout}")
        self.dead_clients: list[str] = []

    def run(self, faults: Sequence[Fault], goes_on: Callable[[], bool]) -> Iterator[Episode]:
        """Episodes as they end, while `goes_on`: all faults in random order, then all again."""
        with LoadClients(self._farm, self._load, self._folder) as clients:
            began_s = now_s()
            if self._await_service(clients, began_s, _FIRST_SERVICE_S) is None:
                raise RuntimeError(f"the farm does not serve; see {self._folder}")
            while goes_on():
                for fault in self._dice.sample(list(faults), len(faults)):
                    if not goes_on():
                        break
                    if fault.can_happen(self._farm):
                        yield self._episode(clients, fault)
            self.dead_clients = clients.dead()

    def _episode(self, clients: LoadClients, fault: Fault) -> Episode:
        episode = Episode(fault.name, self._layout)
        context = FaultContext(self._farm, self._dice, clients.ask_for_slow_programs, episode.notes)
        restarts, began_s = self._farm.restarts(), now_s()
        undo = fault.begin(context)
        counts_from_s = began_s
        if not fault.must_be_repaired:
            time.sleep(fault.lasts_s)
            if undo is not None:
                undo()
            counts_from_s = now_s()
        served_s = self._await_service(clients, counts_from_s, _GIVE_UP_S)
        if fault.must_be_repaired and undo is not None:
            undo()
        if served_s is None:
            self._restart(clients, episode)
        else:
            episode.service_s = served_s - counts_from_s
        time.sleep(_REST_S)
        add_calls(episode, clients.calls(began_s), now_s())
        clients.replace_stuck()
        episode.restarts = max(0, self._farm.restarts() - restarts)
        return episode

    def _restart(self, clients: LoadClients, episode: Episode) -> None:
        """Restarts the whole farm, so that it serves when the next fault begins."""
        episode.notes.append("the farm did not serve again and was restarted")
        self._farm.kill()
        self._farm.start()
        if self._await_service(clients, now_s(), _FIRST_SERVICE_S) is None:
            raise RuntimeError(f"the restarted farm does not serve; see {self._folder}")

    @staticmethod
    def _await_service(clients: LoadClients, since_s: float, timeout_s: float) -> float | None:
        """When new programs were compiled again; None if not in time."""
        while now_s() - since_s < timeout_s:
            served_s = clients.service_s(PROBE, since_s)
            if served_s is not None:
                return served_s
            time.sleep(_POLL_S)
        return None


def add_calls(episode: Episode, calls: Sequence[Call], time_s: float) -> None:
    """Adds the results of calls to an episode; `time_s` is the present time."""
    for call in calls:
        if call.is_late(time_s) and not call.is_reported:
            call.is_reported = True
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


def report_progress(line: str) -> None:
    """Writes a line about progress to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
