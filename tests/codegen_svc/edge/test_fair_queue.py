"""Turns among tenants: by the time that their jobs ran, with a slot kept free."""

from __future__ import annotations

import asyncio

import pytest

from codegen_svc.edge.fair_queue import FairQueue, JobClass


class Queue:
    """Jobs that hold a turn each and end when the test says so; time goes by when it says so.

    A name's first letter is its tenant; a capital makes it warm-up, a `!` slow.
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
        async with self.permits.permit(claim) as turn:
            self.begun.append(name)
            turn.begin()
            await self.ends[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_tenant_alone_has_all_turns() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send(*(f"a{n}" for n in range(6)))
    assert queue.begun == ["a0", "a1", "a2", "a3"]


async def test_of_two_tenants_neither_takes_the_last_slot() -> None:
    queue = Queue(slots=3, positions=6)
    await queue.send("b0")
    await queue.end("b0")
    await queue.send(*(f"a{n}" for n in range(100)))
    assert queue.begun[1:] == ["a0", "a1"], "one of three slots stays free for b"
    await queue.send("b1")
    assert queue.begun[-1] == "b1"


async def test_who_was_quiet_for_a_minute_is_waited_for_no_more() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("b0")
    await queue.end("b0")
    queue.now_s += 61.0
    await queue.send(*(f"a{n}" for n in range(6)))
    assert len(queue.begun) == 1 + 4


async def test_who_used_least_is_next_however_many_wait() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0", "b0", "c0", "a1", "b1", "c1")
    await queue.end("a0", after_s=10.0)
    await queue.end("b0", after_s=1.0)
    await queue.end("c0", after_s=5.0)
    await queue.end("b1", after_s=1.0)
    await queue.end("c1")
    assert queue.begun == ["a0", "b0", "c0", "b1", "c1", "a1"]


async def test_what_was_used_is_forgotten_by_halves() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0")
    await queue.end("a0", after_s=8.0)
    assert queue.permits.used_s("a") == pytest.approx(8.0)
    queue.now_s += 120.0
    assert queue.permits.used_s("a") == pytest.approx(2.0)


async def test_waiting_in_the_queue_costs_nothing() -> None:
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


async def test_warm_up_has_half_of_the_turns_and_waits_behind_everybody() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send(*(f"A{n}" for n in range(6)))
    assert queue.begun == ["A0", "A1"]
    await queue.send("a0", "a1", "a2")
    assert queue.begun[2:] == ["a0", "a1"]
    await queue.end("A0")
    assert queue.begun[4:] == ["a2"]


async def test_who_goes_away_leaves_the_line_and_gives_its_turn_back() -> None:
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


async def test_a_turn_given_to_somebody_who_goes_away_at_that_moment_is_not_lost() -> None:
    queue = Queue(slots=1, positions=1)
    await queue.send("a0", "b0", "c0")
    queue.ends["a0"].set()
    await asyncio.sleep(0)  # a0 ends and b0 is called, but has not run yet
    queue.tasks["b0"].cancel()
    await settle()
    assert queue.begun[-1] == "c0"


async def test_new_places_are_given_at_the_next_occasion() -> None:
    queue = Queue(slots=4, positions=1)
    await queue.send("a0", "a1")
    queue.max_sent = 3
    await queue.send("b0")
    assert set(queue.begun) == {"a0", "a1", "b0"}


async def test_a_failure_gives_the_turn_back() -> None:
    turns = FairQueue(lambda: 1, lambda: 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            async with turns.permit(JobClass("a")):
                raise ValueError("broken")


async def test_who_used_more_than_others_stands_back_while_they_are_active() -> None:
    queue = Queue(slots=2, positions=4)
    await queue.send("a0")
    await queue.end("a0", after_s=10.0)
    assert not queue.permits.must_stand_back("a")  # nobody else is there
    await queue.send("b0")
    assert queue.permits.must_stand_back("a") and not queue.permits.must_stand_back("b")
    await queue.end("b0", after_s=30.0)
    assert queue.permits.must_stand_back("b") and not queue.permits.must_stand_back("a")
