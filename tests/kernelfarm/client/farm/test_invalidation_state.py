"""No stale serve: any order of invalidations, answers, restarts and lost connections."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kernelfarm.client.disk.tier import Confirmation
from kernelfarm.client.farm.cache_client import WatchEvent
from kernelfarm.client.farm.invalidation_state import (
    SETTLING_S,
    InvalidationState,
    KnownAtRequest,
    initial_state,
)
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import BlobRef, Manifest, Space
from tests.support.examples import examples

TAGS = st.sampled_from(["op:a", "op:b", "model:m"])
GATEWAY_LAG_S = 3.0


def manifest_of(tags: tuple[str, ...], epoch: int, incarnation: str) -> Manifest:
    blob = BlobRef(b"\0" * 32, 0)
    return Manifest(
        "default",
        Space.PROGRAMS,
        b"\0" * 32,
        b"\0" * 32,
        (),
        tags,
        epoch,
        incarnation,
        blob,
        (),
        0.0,
        0,
    )


@dataclass
class Kept:
    """An entry on disk."""

    manifest: Manifest
    confirmation: Confirmation


class Clients(RuleBasedStateMachine):
    """One farm with a gateway that may lag behind, and processes that share a disk tier."""

    @initialize()
    def start(self) -> None:
        self.now_s = 1000.0
        self.incarnation, self.epoch = "farm-0", 5
        self.bumps: list[tuple[int, str, float]] = []
        self.trimmed = 5  # the farm's log has no invalidation up to this epoch any more
        self.program = manifest_of(("op:a",), 3, self.incarnation)
        self.disk: list[Kept] = []
        self.state: InvalidationState | None = None  # the file that processes share
        self.known: InvalidationState | None = None  # of the process that runs
        self.is_live = False

    @rule(tag=TAGS)
    def invalidate(self, tag: str) -> None:
        self.epoch += 1
        self.bumps.append((self.epoch, tag, self.now_s))
        if self.is_live:
            self.receive(WatchEvent((tag,), self.epoch, self.incarnation, False, ""))
        elif tag in self.program.tags:
            pass  # compiled again when somebody asks

    @rule(seconds=st.sampled_from([0.1, 4.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def farm_trims_its_log(self) -> None:
        self.trimmed = self.epoch

    @rule()
    def farm_loses_its_epochs(self) -> None:
        number = int(self.incarnation.partition("-")[2]) + 1
        self.incarnation, self.epoch, self.bumps, self.trimmed = f"farm-{number}", 0, [], 0
        self.program = manifest_of(("op:a",), 0, self.incarnation)
        self.is_live = False

    @rule()
    def disconnect(self) -> None:
        self.is_live = False

    @rule()
    def another_process_starts(self) -> None:
        self.known, self.is_live = self.state, False

    @rule()
    def connect(self) -> None:
        known = self.known
        is_lost = known is not None and (
            known.incarnation != self.incarnation or known.epoch < self.trimmed
        )
        if is_lost:
            self.receive(WatchEvent((), self.epoch, self.incarnation, True, ""))
        elif known is not None:
            for epoch, tag, _ in self.bumps:
                if epoch > known.epoch:
                    self.receive(WatchEvent((tag,), epoch, self.incarnation, False, ""))
        self.receive(WatchEvent((), self.epoch, self.incarnation, False, ""))
        self.is_live = True

    def receive(self, event: WatchEvent) -> None:
        known = self.known
        self.known = (
            initial_state(event, self.now_s) if known is None else known.after(event, self.now_s)
        )
        self.state = self.known

    def is_dead(self, manifest: Manifest, tags: tuple[str, ...], before_s: float) -> bool:
        """True by a gateway that has applied every invalidation up to a time."""
        return manifest.incarnation != self.incarnation or any(
            tag in (*manifest.tags, *tags) and epoch > manifest.epoch and at_s <= before_s
            for epoch, tag, at_s in self.bumps
        )

    @rule(tags=st.sampled_from([(), ("model:m",)]), lag_s=st.sampled_from([0.0, GATEWAY_LAG_S]))
    def ask_the_farm(self, tags: tuple[str, ...], lag_s: float) -> None:
        asked = KnownAtRequest(self.known, self.now_s)
        if self.is_dead(self.program, tags, self.now_s - lag_s):
            named = tuple(dict.fromkeys((*self.program.tags, *tags)))
            self.program = manifest_of(named, self.epoch, self.incarnation)
        if self.known is not None and self.known.is_stale(self.program, tags):
            return  # not taken: asked again later
        self.disk.append(Kept(self.program, asked.confirmation(self.program, tags)))

    @invariant()
    def nothing_stale_is_served_from_disk(self) -> None:
        if not self.is_live:
            return
        assert self.known is not None
        for kept, tags in product(self.disk, ((), ("model:m",))):
            is_served = not self.known.is_stale(kept.manifest, tags) and self.known.is_covered(
                kept.manifest, kept.confirmation, tags
            )
            assert not (is_served and self.is_dead(kept.manifest, tags, self.now_s))


Clients.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=20, deadline=None
)
TestNoClientServesWhatWasInvalidated = Clients.TestCase


def test_epochs_of_a_farm_before_it_lost_them_confirm_nothing() -> None:
    """The farm's epochs begin again, and the client asks it before its watch has noticed."""
    state = Clients()
    state.start()
    state.connect()
    state.farm_loses_its_epochs()
    state.time_passes(seconds=10.0)
    state.ask_the_farm(lag_s=0.0, tags=())
    state.invalidate(tag="op:a")
    state.connect()
    state.nothing_stale_is_served_from_disk()
    assert state.disk[0].confirmation.epoch == 0


def test_what_is_known_survives_its_file() -> None:
    event = WatchEvent(("op:a",), 6, "first", False, "first:6")
    known = InvalidationState("first", 5, 5, 100.0, former=("old",)).after(event, 101.0)
    assert InvalidationState.from_json(known.to_json()) == known
    assert known.settled_at(101.0 + SETTLING_S) == 6


@pytest.mark.parametrize(
    "changed",
    [{"epoch": "6"}, {"bumped": {"op:a": None}}, {"former": 3}, {"incarnation": 1}, {"base": None}],
)
def test_a_file_that_is_no_state_is_refused(changed: dict[str, object]) -> None:
    reported = json.loads(InvalidationState("first", 5, 5, 100.0, former=("old",)).to_json())
    with pytest.raises(MalformedMessageError, match="not an invalidation state"):
        InvalidationState.from_json(json.dumps({**reported, **changed}))
    with pytest.raises(MalformedMessageError, match="not an invalidation state"):
        InvalidationState.from_json(json.dumps(reported)[:-1])


def test_an_event_without_tags_confirms_that_nothing_was_missed() -> None:
    known = InvalidationState("first", 5, 5, 100.0)
    assert known.after(WatchEvent((), 9, "first", False, ""), 200.0).base == 5
    assert known.after(WatchEvent(("op:a",), 9, "first", False, ""), 200.0).base == 9
    assert known.after(WatchEvent((), 9, "first", True, ""), 200.0).base == 9


def test_a_response_to_others_does_not_confirm_a_program_of_our_model() -> None:
    known = InvalidationState("first", 6, 6, 100.0)
    program = manifest_of(("op:a",), 3, "first")
    assert known.is_covered(program, Confirmation(6), ())
    assert not known.is_covered(program, Confirmation(6), ("model:m",))
    assert known.is_covered(program, Confirmation(6, frozenset({"model:m"})), ("model:m",))
    assert not known.is_covered(program, Confirmation(5, frozenset({"model:m"})), ("model:m",))
