"""Turns among tenants for places in a queue."""

from __future__ import annotations

import asyncio

import pytest

from codegen_svc.fair_turns import FairTurns


class Queue:
    """Jobs that take a place each and end when the test says so."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.turns = FairTurns(lambda: self.places)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await settle()

    async def _run(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.begun.append(name)
            await self.ends[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_flood_of_one_tenant_does_not_hold_another_up() -> None:
    queue = Queue(2)
    await queue.send(*(f"a{n}" for n in range(100)))
    await queue.send("b0", "c0", "c1")
    assert queue.begun == ["a0", "a1"]
    await queue.end("a0", "a1")
    assert queue.begun == ["a0", "a1", "a2", "b0"]
    await queue.end("a2", "b0")
    assert queue.begun[4:] == ["c0", "a3"]
    await queue.end("c0", "a3")
    assert queue.begun[6:] == ["c1", "a4"]
    assert queue.turns.waiting == 95


async def test_a_tenant_alone_has_all_places() -> None:
    queue = Queue(3)
    await queue.send("a0", "a1", "a2", "a3")
    assert queue.begun == ["a0", "a1", "a2"]


async def test_who_goes_away_leaves_the_line_and_gives_its_place_back() -> None:
    queue = Queue(1)
    await queue.send("a0", "a1", "b0")
    queue.tasks["a1"].cancel()
    await settle()
    assert queue.turns.waiting == 1
    queue.tasks["a0"].cancel()
    await settle()
    assert queue.begun == ["a0", "b0"]
    await queue.end("b0")
    assert queue.turns.waiting == 0
    await queue.send("c0")
    assert queue.begun[-1] == "c0"


async def test_a_place_given_to_somebody_who_goes_away_at_that_moment_is_not_lost() -> None:
    queue = Queue(1)
    await queue.send("a0", "b0", "c0")
    queue.ends["a0"].set()
    await asyncio.sleep(0)  # a0 ends and b0 is called, but has not run yet
    queue.tasks["b0"].cancel()
    await settle()
    assert queue.begun[-1] == "c0"


async def test_new_places_are_given_at_the_next_occasion() -> None:
    queue = Queue(1)
    await queue.send("a0", "a1")
    queue.places = 3
    await queue.send("b0")
    assert set(queue.begun) == {"a0", "a1", "b0"}


async def test_a_failure_gives_the_place_back() -> None:
    turns = FairTurns(lambda: 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            async with turns.turn("a"):
                raise ValueError("broken")
