"""Permits go to the tenant whose jobs ran for the shortest time; one slot stays free."""

from __future__ import annotations

import asyncio

import pytest

from codegen_svc.edge.fair_queue import FairQueue, JobClass


class Queue:
    """Jobs that hold a permit each; the test ends them and sets the clock.

    The first letter of a name is the tenant; a capital means warm-up, a `!` means slow.
    """

    def __init__(self, slots: int, positions: int) -> None:
        self.slots, self.max_sent, self.now_s = slots, positions, 0.0
        self.permits = FairQueue(lambda: self.slots, lambda: self.max_sent, lambda: self.now_s)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        await settle()

    async def end(self, *names: str, after_s: float = 1.0) -> None:
        self.now_s += after_s
        for name in names:
            self.ends[name].set()
        await settle()

    async def _run(self, name: str) -> None:
        tenant = name[0]
        claim = JobClass(tenant.lower(), is_warm_up=tenant.isupper(), is_slow="!" in name)
        async with self.permits.permit(claim) as permit:
            self.begun.append(name)
            permit.begin()
            await self.ends[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_tenant_alone_may_send_as_many_jobs_as_there_are_positions() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send(*(f"a{n}" for n in range(6)))
    assert queue.begun == ["a0", "a1", "a2", "a3"]


async def test_one_slot_stays_free_for_another_active_tenant() -> None:
    queue = Queue(slots=3, positions=6)
    await queue.send("b0")
    await queue.end("b0")
    await queue.send(*(f"a{n}" for n in range(100)))
    assert queue.begun[1:] == ["a0", "a1"], "one of three slots stays free for b"
    await queue.send("b1")
    assert queue.begun[-1] == "b1"


async def test_no_slot_stays_free_for_a_tenant_that_was_idle_for_a_minute() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("b0")
    await queue.end("b0")
    queue.now_s += 61.0
    await queue.send(*(f"a{n}" for n in range(6)))
    assert len(queue.begun) == 1 + 4


async def test_the_tenant_that_used_least_is_next() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0", "b0", "c0", "a1", "b1", "c1")
    await queue.end("a0", after_s=10.0)
    await queue.end("b0", after_s=1.0)
    await queue.end("c0", after_s=5.0)
    await queue.end("b1", after_s=1.0)
    await queue.end("c1")
    assert queue.begun == ["a0", "b0", "c0", "b1", "c1", "a1"]


async def test_used_time_halves_every_minute() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0")
    await queue.end("a0", after_s=8.0)
    assert queue.permits.used_s("a") == pytest.approx(8.0)
    queue.now_s += 120.0
    assert queue.permits.used_s("a") == pytest.approx(2.0)


async def test_time_before_a_job_begins_is_not_counted() -> None:
    queue = Queue(slots=1, positions=2)
    async with queue.permits.permit(JobClass("a")):
        queue.now_s += 100.0
    assert queue.permits.used_s("a") == 0.0


async def test_slow_kernels_leave_one_slot_to_quick_ones_of_the_same_tenant() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("a0!", "a1!", "a2!")
    assert queue.begun == ["a0!"]
    await queue.send("a3", "a4", "a5")
    assert queue.begun == ["a0!", "a3", "a4", "a5"]
    await queue.end("a3", "a4", "a5")
    assert queue.begun[4:] == []
    await queue.end("a0!")
    assert queue.begun[4:] == ["a1!"]


async def test_one_slot_serves_slow_kernels_too() -> None:
    queue = Queue(slots=1, positions=2)
    await queue.send("a0!", "a1!")
    assert queue.begun == ["a0!"]
    await queue.end("a0!")
    assert queue.begun == ["a0!", "a1!"]


async def test_warm_up_has_half_of_the_positions_and_is_last_in_the_queue() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send(*(f"A{n}" for n in range(6)))
    assert queue.begun == ["A0", "A1"]
    await queue.send("a0", "a1", "a2")
    assert queue.begun[2:] == ["a0", "a1"]
    await queue.end("A0")
    assert queue.begun[4:] == ["a2"]


async def test_a_cancelled_job_leaves_the_queue_and_releases_its_permit() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0", "a1", "b0")
    queue.tasks["a1"].cancel()
    await settle()
    assert queue.permits.waiting == 1
    queue.tasks["a0"].cancel()
    await settle()
    assert queue.begun == ["a0", "b0"]
    await queue.end("b0")
    assert queue.permits.waiting == 0
    await queue.send("c0")
    assert queue.begun[-1] == "c0"


async def test_a_permit_granted_to_a_job_that_is_cancelled_then_is_released() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0", "b0", "c0")
    queue.ends["a0"].set()
    await asyncio.sleep(0)  # a0 ends and b0 has its permit, but has not run yet
    queue.tasks["b0"].cancel()
    await settle()
    assert queue.begun[-1] == "c0"


async def test_new_positions_are_used_when_the_next_job_arrives() -> None:
    queue = Queue(slots=4, positions=1)
    await queue.send("a0", "a1")
    queue.max_sent = 3
    await queue.send("b0")
    assert set(queue.begun) == {"a0", "a1", "b0"}


async def test_a_failure_releases_the_permit() -> None:
    permits = FairQueue(lambda: 1, lambda: 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            async with permits.permit(JobClass("a")):
                raise ValueError("broken")


async def test_a_tenant_that_used_more_stands_back_while_others_are_active() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("a0")
    await queue.end("a0", after_s=10.0)
    assert not queue.permits.must_stand_back("a")  # no other tenant is active
    await queue.send("b0")
    assert queue.permits.must_stand_back("a") and not queue.permits.must_stand_back("b")
    await queue.end("b0", after_s=30.0)
    assert queue.permits.must_stand_back("b") and not queue.permits.must_stand_back("a")


async def test_while_users_call_one_slot_is_free_of_warm_up_jobs() -> None:
    queue = Queue(slots=2, positions=8)
    await queue.send("A0", "A1", "A2", "A3", "A4")
    assert queue.begun == ["A0", "A1", "A2", "A3"]  # no user called
    await queue.send("b0")
    await queue.end("b0", "A0", "A1", "A2")
    assert queue.begun[4:] == ["b0"]  # A3 has the slot that warm-ups may use
    await queue.end("A3")
    assert queue.begun[5:] == ["A4"]


async def test_warm_up_jobs_take_no_slots_from_other_tenants() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("W0", "a0", "a1", "a2")
    assert queue.begun == ["W0", "a0", "a1", "a2"]
