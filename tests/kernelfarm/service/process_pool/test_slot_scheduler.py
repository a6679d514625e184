"""Whose job runs next: counted in turns, without processes and without clocks."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kernelfarm.errors import FarmFullError
from kernelfarm.service.process_pool.slot_scheduler import SlotRequest, SlotScheduler
from kernelfarm.service.process_pool.usage import Usage


class Jobs:
    """Jobs by name; `begun` tells in which order they got a slot."""

    def __init__(self, lanes: SlotScheduler) -> None:
        self._scheduler = lanes
        self._tasks: list[asyncio.Task[None]] = []
        self.requests: dict[str, SlotRequest] = {}
        self.begun: list[str] = []

    async def add(self, name: str, *, is_heavy: bool = False) -> None:
        """A job of the tenant that its name begins with asks for a slot."""
        ticket = self.requests[name] = SlotRequest(name[0])
        ticket.is_heavy = is_heavy
        self._tasks.append(asyncio.create_task(self._enter(name, ticket)))
        await settled()

    async def _enter(self, name: str, ticket: SlotRequest) -> None:
        await self._scheduler.enter(ticket)
        self.begun.append(name)

    async def end(self, name: str) -> None:
        """A job that runs has ended."""
        self._scheduler.leave(self.requests[name])
        await settled()

    async def give_up(self, name: str) -> None:
        """The caller of a job is cancelled."""
        self._tasks[list(self.requests).index(name)].cancel()
        await settled()

    def revoked(self) -> list[str]:
        """Jobs that are told to give way."""
        return [name for name, ticket in self.requests.items() if ticket.preempted.done()]


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_free_slots_go_to_tenants_in_turn() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await jobs.add(name)
    while len(jobs.begun) < len(jobs.requests):
        await jobs.end(jobs.begun[-1])
    assert jobs.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_a_heavy_job_leaves_the_light_lane_to_those_who_wait() -> None:
    lanes = SlotScheduler(1, 100)
    jobs = Jobs(lanes)
    for name in ("a1", "a2", "a3"):
        await jobs.add(name)
    lanes.mark_heavy(jobs.requests["a1"])
    await settled()
    assert jobs.begun == ["a1", "a2"] and jobs.revoked() == []
    lanes.mark_heavy(jobs.requests["a2"])  # now the heavy lane is full
    await settled()
    assert jobs.revoked() == ["a2"]
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "a3"]


async def test_a_heavy_job_for_which_nobody_waits_goes_on_where_it_is() -> None:
    lanes = SlotScheduler(2, 100)
    jobs = Jobs(lanes)
    for name in ("a1", "a2"):
        await jobs.add(name)
        lanes.mark_heavy(jobs.requests[name])
    assert len(lanes.light.running) == 2 and not lanes.heavy.running and not jobs.revoked()


async def test_a_tenant_without_a_heavy_job_gets_the_slot_of_one_that_has_two() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "a2", "a3", "b1"):
        await jobs.add(name, is_heavy=True)
    assert jobs.revoked() == ["a2"]
    await jobs.end("a2")
    # The slot goes to whose turn it is: a's third job first, which then gives way to b.
    while "b1" not in jobs.begun:
        (revoked,) = [name for name in jobs.revoked() if name in jobs.begun[2:]]
        await jobs.end(revoked)
    assert "a1" not in jobs.revoked()


async def test_the_last_heavy_job_of_a_tenant_is_never_ended_for_others() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "b1", "c1", "d1"):
        await jobs.add(name, is_heavy=True)
    assert jobs.revoked() == []
    await jobs.end("a1")
    assert jobs.begun == ["a1", "b1", "c1"]


async def test_too_many_waiting_jobs_are_one_tenants_own_trouble() -> None:
    lanes = SlotScheduler(1, 2)
    jobs = Jobs(lanes)
    for name in ("a1", "a2", "a3"):
        await jobs.add(name)
    with pytest.raises(FarmFullError, match="2 pieces of work"):
        await lanes.enter(SlotRequest("a"))
    await jobs.add("b1")
    await jobs.end("a1")
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "b1"]


async def test_a_job_whose_caller_gives_up_leaves_the_queue_and_the_slot() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    for name in ("a1", "a2", "b1"):
        await jobs.add(name)
    await jobs.give_up("a2")
    await jobs.end("a1")
    assert jobs.begun == ["a1", "b1"]


async def test_a_tenant_with_heavy_jobs_leaves_a_light_slot_while_others_call() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    await jobs.add("a-heavy", is_heavy=True)
    for name in ("a1", "a2"):
        await jobs.add(name)
    assert jobs.begun == ["a-heavy", "a1", "a2"]  # nobody else calls
    await jobs.end("a1")
    await jobs.add("b1")
    await jobs.end("a2")
    for name in ("a3", "a4", "b2"):
        await jobs.add(name)
    assert jobs.begun[3:] == ["b1", "b2"]
    await jobs.end("b1")
    await jobs.end("b2")
    assert jobs.begun[5:] == ["a3"]  # one at a time, in its turn


async def test_a_tenant_that_used_much_lately_leaves_a_light_slot_too() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "b1"):
        await jobs.add(name)
    jobs.requests["a1"].used_s = 2.0
    for name in ("a1", "b1"):
        await jobs.end(name)
    for name in ("a2", "a3", "b2"):
        await jobs.add(name)
    assert jobs.begun[2:] == ["a2", "b2"]


def test_what_a_tenant_used_is_forgiven_in_time() -> None:
    usage = Usage()
    usage.charge("a", 2.0, now_s=100.0)
    assert usage.is_much("a", 101.0) and not usage.is_much("b", 101.0)
    assert not usage.is_much("a", 118.0)


def test_much_is_more_than_others_use_at_the_same_time() -> None:
    usage = Usage()
    for tenant, used_s in (("a", 5.0), ("b", 4.0), ("c", 0.4)):
        usage.charge(tenant, used_s, now_s=100.0)
    assert [usage.is_much(tenant, 100.0) for tenant in "abcd"] == [True, True, False, False]
    usage.charge("c", 19.0, now_s=100.1)
    assert [usage.is_much(tenant, 101.0) for tenant in "abcd"] == [False, False, True, False]


async def test_a_tenant_of_heavy_jobs_begins_heavy_while_others_call() -> None:
    lanes = SlotScheduler(4, 100, heavy_after_s=0.25)
    jobs = Jobs(lanes)
    numbers = itertools.count()

    async def run(used_s: float) -> bool:
        name = f"a{next(numbers)}"
        await jobs.add(name)
        jobs.requests[name].used_s = used_s
        await jobs.end(name)
        return jobs.requests[name].is_heavy

    for _ in range(10):
        assert not await run(0.3)  # nobody else calls
    await jobs.add("b1")
    assert await run(0.3)
    for _ in range(8):
        await run(0.01)
    assert not await run(0.01)  # its latest jobs were light
    assert not jobs.requests["b1"].is_heavy
