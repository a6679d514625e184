"""Any order of look-up, lease, renewal, publication, invalidation, eviction and crash.

A model of the server predicts each result: nothing stale is served to any caller, live entries are
found, a lease has one holder at a time, vanished holders are counted, and at the end of every
history each key can be made.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kernelfarm.cache import (
    KernelCache,
    Lease,
    LookupResult,
    PublishStatus,
    Space,
    UnsignedVariant,
    WorkerCache,
    epoch_calls,
)
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.cache.sweeper import Sweeper
from kernelfarm.errors import ErrorFacts
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import FactAtom, FactSubject, Guard
from kernelfarm.signing.manifest import blob_ref

KEYS = tuple(hashlib.sha256(b"key %d" % number).digest() for number in range(2))
TAGS = ("op:a", "pass:b", "model:c")
CALLERS = ((), ("model:c",), ("model:d",))
"""The tags of callers; no entry has the last one."""
GENERAL: Guard = ()
SPECIAL: Guard = (FactAtom(FactSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 16),)
MOST_TAGS = 12
FACTS = ErrorFacts("FAILED_PRECONDITION", "KERNEL_REJECTED", "no", None)

_numbers = itertools.count()

keys = st.sampled_from(KEYS)
guard_sets = st.sampled_from([(GENERAL,), (SPECIAL,), (GENERAL, SPECIAL)])
tag_sets = st.sets(st.sampled_from(TAGS)).map(lambda tags: tuple(sorted(tags)))
invalidated = st.sets(st.sampled_from((*TAGS, "model:d")), min_size=1).map(tuple)


@dataclass(frozen=True)
class Held:
    """A lease as its holder knows it, and the model's time at which it was acquired."""

    lease: Lease
    incarnation: int
    moment: int


@dataclass(frozen=True)
class Entry:
    """A published variant in the model; its epoch is that of the server."""

    content: bytes
    tags: tuple[str, ...]
    incarnation: int
    moment: int
    epoch: int


def _is_something_stored(fleet: Fleet) -> bool:
    """Without this condition, most histories would consist of losses only."""
    return any(fleet.entries.values())


class Fleet(RuleBasedStateMachine):
    """Holders of leases that start and vanish, operators that invalidate, a server that evicts."""

    leases: Bundle[Held] = Bundle("leases")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.number = next(_numbers)
        namespace = f"fleet-{self.number}"
        self.names = RedisKeys(namespace)
        self.raw = redis.Redis.from_url(url)
        self.cache = KernelCache(url, namespace=namespace, space=Space.KERNELS)
        self.workers = WorkerCache(url, namespace=namespace)
        self.incarnation = 0
        self.moment = 0
        self.bumps: dict[str, int] = {}
        self.floor = 0
        self.entries: dict[bytes, dict[Guard, Entry]] = {key: {} for key in KEYS}
        self.holders: dict[bytes, int] = {}
        self.attempts: defaultdict[bytes, set[tuple[int, str]]] = defaultdict(set)
        self.done: set[tuple[bytes, int]] = set()
        self.looks = itertools.count()
        self.blobs: set[bytes] = set()
        self.failures: set[bytes] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        try:
            self.every_key_can_be_made()
        finally:
            self.run(self.cache.close())
            self.workers.close()
            self.raw.close()
            self.runner.close()

    @initialize()
    def a_table_begins(self) -> None:
        self.run(self.cache.epochs.current())

    @rule(target=leases, key=keys, is_queued=st.booleans())
    def somebody_wants_to_make(self, key: bytes, is_queued: bool) -> Any:
        held = self.wanted(key, is_queued)
        return multiple() if held is None else held

    @rule(target=leases, key=keys, tags=tag_sets, guards=guard_sets)
    def somebody_makes(self, key: bytes, tags: tuple[str, ...], guards: tuple[Guard, ...]) -> Any:
        self.a_holder_dies(key)
        held = self.wanted(key, is_queued=False)
        assert held is not None
        self.a_holder_stores(held)
        self.a_holder_publishes(held, tags, guards)
        return held

    def wanted(self, key: bytes, is_queued: bool) -> Held | None:
        """A lease, if it is not held."""
        seen = self.looked(key).stamp
        owner = f"owner {next(_numbers)}"
        lease = self.run(self.cache.acquire(key, owner, 60, is_queued=is_queued, seen=seen))
        if key in self.holders:
            assert lease is None, "a second holder"
            return None
        assert lease is not None, "nobody holds it, and nobody gets it"
        assert lease.attempts == len(self.attempts[key])
        self.holders[key] = lease.fence
        if not is_queued:
            self.begins(lease)
        return Held(lease, self.incarnation, self.moment)

    @rule(key=keys)
    def somebody_asks_blindly(self, key: bytes) -> None:
        lease = self.run(self.cache.acquire(key, f"owner {next(_numbers)}", 60))
        assert (lease is None) is (key in self.holders or self.is_live(key))
        if lease is not None:
            self.run(self.cache.release(lease))

    @rule(target=leases, held=leases)
    def a_worker_adopts(self, held: Held) -> Any:
        lease = held.lease
        mine = Lease(lease.key, f"worker {next(_numbers)}", lease.fence, 60, 0)
        adopted = self.workers.adopt(mine)
        if not self.is_holder(held):
            assert adopted is None, "an old fence was adopted"
        if adopted is None:
            return multiple()
        self.begins(adopted.lease)
        assert (adopted.lease.incarnation, adopted.lease.epoch) == (lease.incarnation, lease.epoch)
        return Held(adopted.lease, held.incarnation, held.moment)

    @rule(held=leases)
    def a_holder_renews(self, held: Held) -> None:
        is_renewed = self.run(self.cache.renew(held.lease))
        assert not is_renewed or self.is_holder(held), "a lost lease was renewed"

    @rule(held=leases)
    def a_holder_stores(self, held: Held) -> None:
        blob = b"blob of " + held.lease.key
        self.run(self.cache.put_blobs({hashlib.sha256(blob).digest(): blob}))
        self.blobs.add(held.lease.key)

    @rule(held=leases, tags=tag_sets, guards=guard_sets)
    def a_holder_publishes(
        self, held: Held, tags: tuple[str, ...], guards: tuple[Guard, ...]
    ) -> None:
        key, lease = held.lease.key, held.lease
        blob = b"blob of " + key
        contents = {guard: b"%d" % next(_numbers) for guard in guards}
        was_holder = self.is_holder(held)
        published = self.run(
            self.cache.publish(
                lease,
                [UnsignedVariant(made, (blob_ref(blob),), g, tags) for g, made in contents.items()],
            )
        )
        if published is PublishStatus.OK and not was_holder:
            # A repeated publication gets the same reply, whatever happened to its variants.
            assert (key, lease.fence) in self.done
            return
        assert published is self.expected(held, tags, was_holder)
        if published is PublishStatus.OK:
            self.entries[key] = self.live(key) | {
                guard: Entry(made, tags, held.incarnation, held.moment, lease.epoch)
                for guard, made in contents.items()
            }
            self.failures.discard(key)
            self.done.add((key, lease.fence))
        if published not in {PublishStatus.FENCED, PublishStatus.MISSING_BLOB}:
            self.ends(key)

    @rule(held=leases)
    def a_holder_fails(self, held: Held) -> None:
        key, was_holder = held.lease.key, self.is_holder(held)
        reported = self.run(self.cache.put_failure(key, FACTS, 60, held.lease))
        assert (reported is PublishStatus.OK) is was_holder
        self.ends_in_order(held.lease)
        if was_holder:
            self.ends(key)
            self.failures.add(key)

    @rule(held=leases)
    def a_holder_gives_back(self, held: Held) -> None:
        key = held.lease.key
        self.ends_in_order(held.lease)
        if self.run(self.cache.release(held.lease)):
            assert self.is_holder(held), "a lost lease was given back"
            del self.holders[key]

    @precondition(_is_something_stored)
    @rule(key=keys)
    def a_holder_dies(self, key: bytes) -> None:
        self.raw.delete(self.names.redis_key("l", "k", key.hex()))
        self.holders.pop(key, None)

    @precondition(_is_something_stored)
    @rule(tags=invalidated)
    def an_operator_invalidates(self, tags: tuple[str, ...]) -> None:
        self.run(self.cache.epochs.invalidate(tags))
        self.moment += 1
        self.bumps.update(dict.fromkeys(tags, self.moment))

    @precondition(_is_something_stored)
    @rule()
    def an_operator_invalidates_more_than_is_kept(self) -> None:
        """Invalidates tags that no entry has, so that the table discards older tags."""
        others = [f"op:other{next(_numbers)}" for _ in range(MOST_TAGS)]
        call = epoch_calls.invalidate(self.names, others, MOST_TAGS)
        self.run(AsyncScripts(self.cache.client).run(call))
        self.moment += 1
        self.floor = int(self.raw.hget(self.names.epochs, "@floor") or 0)

    @precondition(_is_something_stored)
    @rule(key=keys, what=st.sampled_from(["blob", "entry", "epochs", "all"]))
    def the_server_loses(self, key: bytes, what: str) -> None:
        losses: dict[str, Callable[[], None]] = {
            "blob": lambda: self.the_server_evicts_a_blob(key),
            "entry": lambda: self.the_server_evicts_an_entry(key),
            "epochs": self.the_epoch_table_is_lost,
            "all": self.the_server_is_flushed,
        }
        losses[what]()

    def the_server_evicts_a_blob(self, key: bytes) -> None:
        self.raw.delete(self.names.blob(hashlib.sha256(b"blob of " + key).digest()))
        self.blobs.discard(key)

    def the_server_evicts_an_entry(self, key: bytes) -> None:
        self.raw.delete(self.names.entry(Space.KERNELS, key))
        self.entries[key] = {}

    def the_epoch_table_is_lost(self) -> None:
        self.raw.delete(self.names.epochs)
        self.incarnation += 1
        self.floor = 0

    def the_server_is_flushed(self) -> None:
        prefix = self.names.redis_key("").replace("{", "\\{").replace("}", "\\}")
        for name in list(self.raw.scan_iter(f"{prefix}*", count=1000)):
            self.raw.delete(name)
        self.incarnation += 1
        self.floor = 0
        self.entries = {key: {} for key in KEYS}
        self.holders.clear()
        self.attempts.clear()
        self.done.clear()
        self.blobs.clear()
        self.failures.clear()

    @precondition(_is_something_stored)
    @rule()
    def a_sweeper_comes(self) -> None:
        self.run(Sweeper(self.cache.client, self.names.namespace, 1e9).sweep())
        self.entries = {key: self.live(key) for key in KEYS}

    @invariant()
    def what_is_live_is_found_and_nothing_else(self) -> None:
        caller = CALLERS[next(self.looks) % len(CALLERS)]
        for key in KEYS:
            live = self.live(key, caller)
            found = self.looked(key, caller)
            reported = {v.manifest.guard: (v.content, v.manifest.tags) for v in found.variants}
            assert reported == {guard: (made.content, made.tags) for guard, made in live.items()}
            assert list(reported) == sorted(reported, key=len, reverse=True), (
                "the general one is not last"
            )

    @invariant()
    def failures_are_reported(self) -> None:
        for key in KEYS:
            reported = self.run(self.cache.get_failure(key))
            assert (reported is not None) is (key in self.failures)

    def every_key_can_be_made(self) -> None:
        for key in KEYS:
            self.a_holder_dies(key)
            seen = self.looked(key).stamp
            lease = self.run(self.cache.acquire(key, f"last {next(_numbers)}", 60, seen=seen))
            assert lease is not None, "wedged"
            reported = self.run(self.cache.publish(lease, [UnsignedVariant(b"last")]))
            # A live result that names a blob is another one than this, which names none.
            is_other = GENERAL in self.live(key)
            assert reported is (PublishStatus.NONDET if is_other else PublishStatus.OK)
            assert self.run(self.cache.lookup(key)).is_hit

    def is_holder(self, held: Held) -> bool:
        return self.holders.get(held.lease.key) == held.lease.fence

    def begins(self, lease: Lease) -> None:
        """Records that a holder runs, which counts as one attempt."""
        self.attempts[lease.key].add((lease.fence, lease.owner))

    def ends_in_order(self, lease: Lease) -> None:
        """Records an orderly end, which is no failed attempt even if the lease was lost."""
        self.attempts[lease.key].discard((lease.fence, lease.owner))

    def ends(self, key: bytes) -> None:
        """Records a result, which clears earlier attempts."""
        del self.holders[key]
        self.attempts.pop(key, None)

    def is_live(self, key: bytes) -> bool:
        return bool(self.live(key))

    def looked(self, key: bytes, caller: tuple[str, ...] = ()) -> LookupResult:
        """The result of a look-up, which deletes variants with a missing blob."""
        found = self.run(self.cache.lookup(key, tags=caller, is_counted=False))
        if key not in self.blobs:
            incomplete = self.valid(key, caller)
            self.entries[key] = {g: e for g, e in self.entries[key].items() if g not in incomplete}
        return found

    def live(self, key: bytes, caller: tuple[str, ...] = ()) -> dict[Guard, Entry]:
        """The variants that a caller with these tags must find."""
        return self.valid(key, caller) if key in self.blobs else {}

    def valid(self, key: bytes, caller: tuple[str, ...]) -> dict[Guard, Entry]:
        """The variants that were not invalidated, with or without their blobs."""
        return {
            guard: entry
            for guard, entry in self.entries[key].items()
            if entry.incarnation == self.incarnation
            and entry.epoch >= self.floor
            and all(self.bumps.get(tag, 0) <= entry.moment for tag in (*entry.tags, *caller))
        }

    def expected(self, held: Held, tags: tuple[str, ...], was_holder: bool) -> PublishStatus:
        if not was_holder:
            return PublishStatus.FENCED
        if held.incarnation != self.incarnation:
            return PublishStatus.STALE_INC
        if held.lease.epoch < self.floor:
            return PublishStatus.STALE_EPOCH
        if any(self.bumps.get(tag, 0) > held.moment for tag in tags):
            return PublishStatus.STALE_EPOCH
        if held.lease.key not in self.blobs:
            return PublishStatus.MISSING_BLOB
        return PublishStatus.OK


@pytest.mark.one_server
def test_no_history_serves_stale_wedges_or_has_two_holders(server: EmbeddedServer) -> None:
    """The same histories in each run; the next test runs random ones."""
    run_histories(server, 40, derandomize=True)


@pytest.mark.slow
@pytest.mark.one_server
def test_no_history_that_was_never_tried_does_either(server: EmbeddedServer) -> None:
    run_histories(server, 1000, derandomize=False)


def run_histories(server: EmbeddedServer, most: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        lambda: Fleet(server.url),
        settings=settings(
            max_examples=most,
            stateful_step_count=60,
            phases=[Phase.generate, Phase.shrink],
            deadline=None,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )
