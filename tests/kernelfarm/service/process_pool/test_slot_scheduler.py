"""The order of jobs, without processes and without clocks."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kernelfarm.errors import FarmFullError
from kernelfarm.service.process_pool.slot_scheduler import SlotRequest, SlotScheduler
from kernelfarm.service.process_pool.usage import ProcessorUsage


class Jobs:
    """Jobs by name; `begun` has them in the order in which they got a slot."""

    def __init__(self, scheduler: SlotScheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[asyncio.Task[None]] = []
        self.requests: dict[str, SlotRequest] = {}
        self.begun: list[str] = []

    async def add(self, name: str, *, is_heavy: bool = False, is_warm_up: bool = False) -> None:
        """Requests a slot for a job; its name begins with its tenant."""
        request = self.requests[name] = SlotRequest(name[0], is_warm_up=is_warm_up)
        request.is_heavy |= is_heavy
        self._tasks.append(asyncio.create_task(self._enter(name, request)))
        await settled()

    async def _enter(self, name: str, request: SlotRequest) -> None:
        await self._scheduler.enter(request)
        self.begun.append(name)

    async def end(self, name: str) -> None:
        """Ends a job that runs."""
        self._scheduler.leave(self.requests[name])
        await settled()

    async def give_up(self, name: str) -> None:
        """Cancels the caller of a job."""
        self._tasks[list(self.requests).index(name)].cancel()
        await settled()

    def preempted_jobs(self) -> list[str]:
        """The jobs that are preempted."""
        return [name for name, request in self.requests.items() if request.preempted.done()]


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_free_slots_go_to_tenants_round_robin() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        await jobs.add(name)
    while len(jobs.begun) < len(jobs.requests):
        await jobs.end(jobs.begun[-1])
    assert jobs.begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_a_heavy_job_leaves_its_light_slot_to_waiting_jobs() -> None:
    scheduler = SlotScheduler(1, 100)
    jobs = Jobs(scheduler)
    for name in ("a1", "a2", "a3"):
        await jobs.add(name)
    scheduler.mark_heavy(jobs.requests["a1"])
    await settled()
    assert jobs.begun == ["a1", "a2"] and jobs.preempted_jobs() == []
    scheduler.mark_heavy(jobs.requests["a2"])  # now all heavy slots are in use
    await settled()
    assert jobs.preempted_jobs() == ["a2"]
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "a3"]


async def test_a_heavy_job_keeps_its_slot_if_no_job_waits() -> None:
    scheduler = SlotScheduler(2, 100)
    jobs = Jobs(scheduler)
    for name in ("a1", "a2"):
        await jobs.add(name)
        scheduler.mark_heavy(jobs.requests[name])
    assert (
        len(scheduler.light.running) == 2
        and not scheduler.heavy.running
        and not jobs.preempted_jobs()
    )


async def test_a_tenant_without_a_heavy_job_gets_the_slot_of_one_that_has_two() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "a2", "a3", "b1"):
        await jobs.add(name, is_heavy=True)
    assert jobs.preempted_jobs() == ["a2"]
    await jobs.end("a2")
    # The slot goes to whose turn it is: a's third job first, which then gives way to b.
    while "b1" not in jobs.begun:
        (preempted_jobs,) = [name for name in jobs.preempted_jobs() if name in jobs.begun[2:]]
        await jobs.end(preempted_jobs)
    assert "a1" not in jobs.preempted_jobs()


async def test_the_last_heavy_job_of_a_tenant_is_never_ended_for_others() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "b1", "c1", "d1"):
        await jobs.add(name, is_heavy=True)
    assert jobs.preempted_jobs() == []
    await jobs.end("a1")
    assert jobs.begun == ["a1", "b1", "c1"]


async def test_too_many_waiting_jobs_of_a_tenant_affect_no_other() -> None:
    scheduler = SlotScheduler(1, 2)
    jobs = Jobs(scheduler)
    for name in ("a1", "a2", "a3"):
        await jobs.add(name)
    with pytest.raises(FarmFullError, match="2 jobs of this tenant"):
        await scheduler.enter(SlotRequest("a"))
    await jobs.add("b1")
    await jobs.end("a1")
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "b1"]


async def test_a_job_whose_caller_is_cancelled_leaves_the_queue_and_the_slot() -> None:
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


async def test_a_tenant_that_used_much_recently_leaves_a_light_slot_too() -> None:
    jobs = Jobs(SlotScheduler(2, 100))
    for name in ("a1", "b1"):
        await jobs.add(name)
    jobs.requests["a1"].used_s = 2.0
    for name in ("a1", "b1"):
        await jobs.end(name)
    for name in ("a2", "a3", "b2"):
        await jobs.add(name)
    assert jobs.begun[2:] == ["a2", "b2"]


def test_the_usage_of_a_tenant_decreases_with_time() -> None:
    usage = ProcessorUsage()
    usage.charge("a", 2.0, now_s=100.0)
    assert usage.is_much("a", 101.0) and not usage.is_much("b", 101.0)
    assert not usage.is_much("a", 118.0)


def test_much_usage_is_more_than_that_of_others_at_the_same_time() -> None:
    usage = ProcessorUsage()
    for tenant, used_s in (("a", 5.0), ("b", 4.0), ("c", 0.4)):
        usage.charge(tenant, used_s, now_s=100.0)
    assert [usage.is_much(tenant, 100.0) for tenant in "abcd"] == [True, True, False, False]
    usage.charge("c", 19.0, now_s=100.1)
    assert [usage.is_much(tenant, 101.0) for tenant in "abcd"] == [False, False, True, False]


async def test_a_tenant_of_heavy_jobs_begins_heavy_while_others_call() -> None:
    scheduler = SlotScheduler(4, 100, heavy_after_s=0.25)
    jobs = Jobs(scheduler)
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


async def test_warm_ups_use_no_slot_of_small_jobs() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    await jobs.add("w1", is_warm_up=True)
    await jobs.add("w2", is_warm_up=True)
    await jobs.add("a1")
    assert jobs.begun == ["w1", "a1"]
    assert jobs.preempted_jobs() == []


async def test_a_warm_up_waits_while_any_other_heavy_job_does() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    await jobs.add("a1", is_heavy=True)
    await jobs.add("w1", is_warm_up=True)
    await jobs.add("a2", is_heavy=True)
    await jobs.end("a1")
    assert jobs.begun == ["a1", "a2"]
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "w1"]


async def test_a_running_warm_up_is_preempted_for_a_heavy_job_and_continues_after_it() -> None:
    jobs = Jobs(SlotScheduler(1, 100))
    await jobs.add("w1", is_warm_up=True)
    await jobs.add("a1", is_heavy=True)
    assert jobs.preempted_jobs() == ["w1"]
    await jobs.end("w1")
    await jobs.add("w2", is_warm_up=True)
    assert jobs.begun == ["w1", "a1"]
    await jobs.end("a1")
    assert jobs.begun == ["w1", "a1", "w2"]


async def test_warm_ups_do_not_make_others_stand_back() -> None:
    scheduler = SlotScheduler(2, 100)
    jobs = Jobs(scheduler)
    await jobs.add("a1", is_heavy=True)
    await jobs.add("w1", is_warm_up=True)
    assert not scheduler.must_stand_back("a")
    await jobs.add("b1")
    assert scheduler.must_stand_back("a")


async def test_a_warm_up_whose_caller_leaves_waits_no_longer() -> None:
    scheduler = SlotScheduler(1, 1)
    jobs = Jobs(scheduler)
    await jobs.add("w1", is_warm_up=True)
    await jobs.add("w2", is_warm_up=True)
    with pytest.raises(FarmFullError, match="1 warm-up jobs wait"):
        await scheduler.enter(SlotRequest("w", is_warm_up=True))
    await jobs.give_up("w2")
    await jobs.add("w3", is_warm_up=True)
    await jobs.end("w1")
    assert jobs.begun == ["w1", "w3"]
