"""Slots to receive bodies, and held bytes: limited in total and for each sender."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kernelfarm.errors import BodyTooSlowError, FarmFullError, NoMessageError
from kernelfarm.service.inbound.bodies import Inbound, InboundLimits
from kernelfarm.service.inbound.byte_rate import ByteRateLimiter, ByteRateLimits

LIMITS = InboundLimits(
    message_bytes=100,
    held_bytes=250,
    held_bytes_per_sender=120,
    bodies=3,
    bodies_per_sender=2,
    quick_s=0.05,
    body_s=60,
    wait_s=60,
)


class Sender:
    """Sends its body when the test asks for it."""

    def __init__(self, size_bytes: int = 10) -> None:
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.data = bytes(size_bytes)

    async def send(self) -> bytes:
        self.began.set()
        await self.goes_on.wait()
        return self.data


def at_once(size_bytes: int) -> Callable[[], Awaitable[bytes]]:
    async def send() -> bytes:
        return bytes(size_bytes)

    return send


async def slots_of(inbound: Inbound, *names: str) -> tuple[list[Sender], list[asyncio.Task]]:
    senders = [Sender() for _ in names]
    taking = zip(names, senders, strict=True)
    tasks = [asyncio.create_task(inbound.take(n, s.send)) for n, s in taking]
    for _ in range(5):
        await asyncio.sleep(0)
    return senders, tasks


async def finish(senders: list[Sender], tasks: list[asyncio.Task]) -> None:
    for sender in senders:
        sender.goes_on.set()
    for task in asyncio.as_completed(tasks):
        (await task).release()


async def test_a_sender_has_a_limited_number_of_slots_and_others_get_theirs() -> None:
    inbound = Inbound(LIMITS)
    senders, tasks = await slots_of(inbound, "acme", "acme", "acme", "acme", "beta", "gamma")
    begun = [sender.began.is_set() for sender in senders]
    assert begun == [True, True, False, False, True, False]
    senders[0].goes_on.set()
    (await tasks[0]).release()
    await senders[2].began.wait()
    senders[2].goes_on.set()
    (await tasks[2]).release()
    # In rotation: acme had its turn, gamma is the next.
    await senders[5].began.wait()
    assert not senders[3].began.is_set()
    await finish([*senders[1:2], *senders[3:]], [tasks[1], *tasks[3:]])
    assert inbound.held_bytes == 0


async def test_a_cancelled_wait_keeps_no_slot() -> None:
    inbound = Inbound(LIMITS)
    senders, tasks = await slots_of(inbound, "acme", "acme", "acme", "acme")
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    assert tasks[2].cancelled()
    await finish([*senders[:2], senders[3]], [*tasks[:2], tasks[3]])
    (await inbound.take("acme", at_once(1))).release()


async def test_a_wait_that_is_too_long_ends_with_a_retry_delay() -> None:
    inbound = Inbound(InboundLimits(100, 250, 120, bodies=1, bodies_per_sender=1, wait_s=0.02))
    senders, tasks = await slots_of(inbound, "acme")
    with pytest.raises(FarmFullError, match="too many requests arrive"):
        await inbound.take("acme", at_once(1))
    await finish(senders, tasks)
    (await inbound.take("acme", at_once(1))).release()


async def test_bytes_are_held_until_they_are_released() -> None:
    inbound = Inbound(LIMITS)
    first = await inbound.take("acme", at_once(90))
    assert first.pop() == bytes(90)
    assert first.pop() == b"", "it keeps them no longer"
    with pytest.raises(FarmFullError, match=r"90 bytes of this caller; it holds at most 120"):
        await inbound.take("acme", at_once(31))
    second, third = [await inbound.take(name, at_once(75)) for name in ("beta", "gamma")]
    with pytest.raises(FarmFullError, match="requests of 240 bytes"):
        await inbound.take("delta", at_once(11))
    assert inbound.held_bytes == 240
    for body in (first, second, third):
        body.release()
    assert inbound.held_bytes == 0
    (await inbound.take("acme", at_once(1000))).release()  # a single one is always taken


async def test_empty_bodies_count_nothing() -> None:
    inbound = Inbound(LIMITS)
    bodies = [await inbound.take("acme", at_once(0)) for _ in range(2)]
    for body in bodies:
        body.release()
    assert inbound.held_bytes == 0


async def test_a_slow_body_counts_as_the_largest_and_gives_its_slot_back() -> None:
    inbound = Inbound(LIMITS)
    senders, tasks = await slots_of(inbound, "acme")
    async with asyncio.timeout(10):
        while inbound.held_bytes != LIMITS.message_bytes:
            await asyncio.sleep(0.01)
    quick = [await inbound.take("acme", at_once(5)) for _ in range(2)]
    for body in quick:
        body.release()
    # A second one that is slow does not fit beside it.
    with pytest.raises(FarmFullError, match="for one tenant"):
        await inbound.take("acme", Sender().send)
    await finish(senders, tasks)
    assert inbound.held_bytes == 0


async def test_a_body_that_never_arrives_is_aborted() -> None:
    inbound = Inbound(InboundLimits(100, 250, 120, quick_s=0.02, body_s=0.1))
    with pytest.raises(BodyTooSlowError, match=r"within 0\.1 s"):
        await inbound.take("acme", Sender().send)
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    assert inbound.held_bytes == 0


async def test_a_caller_that_goes_away_is_cancelled_as_before() -> None:
    inbound = Inbound(LIMITS)
    _, (task,) = await slots_of(inbound, "acme")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    senders, tasks = await slots_of(inbound, "acme", "acme")
    assert all(sender.began.is_set() for sender in senders)
    await finish(senders, tasks)


async def test_a_call_without_a_message_is_malformed() -> None:
    async def nothing() -> object:
        return None

    with pytest.raises(NoMessageError, match="without a message"):
        await Inbound(LIMITS).take("acme", nothing)


ALLOWANCE = ByteRateLimits(
    bytes_per_s=10, burst_bytes=100, failure_bytes=40, small_bytes=0, shared_s=5
)


def test_a_sender_of_too_many_bytes_waits_while_others_call() -> None:
    allowance = ByteRateLimiter(ALLOWANCE)
    allowance.record_call("victim", 0)
    allowance.record_call("flood", 1)
    allowance.charge_body("flood", 100, 1)
    assert not allowance.is_spent("flood", 1)
    allowance.charge_body("flood", 20, 1)
    assert allowance.is_spent("flood", 1)
    assert not allowance.is_spent("victim", 1)
    assert not allowance.is_spent("flood", 3.1)  # 20 bytes are made good in 2 s


def test_a_sender_that_calls_alone_never_waits() -> None:
    allowance = ByteRateLimiter(ALLOWANCE)
    allowance.record_call("victim", 0)
    allowance.record_call("flood", 1)
    allowance.charge_body("flood", 10_000, 1)
    assert allowance.is_spent("flood", 4.9)
    assert not allowance.is_spent("flood", 5.1)


def test_failed_calls_count_as_bytes() -> None:
    allowance = ByteRateLimiter(ALLOWANCE)
    allowance.record_call("victim", 0)
    allowance.record_call("flood", 0)
    for _ in range(3):
        allowance.charge_failure("flood", 0)
    assert allowance.is_spent("flood", 0)


def test_calls_in_progress_are_charged_in_advance_after_a_failure() -> None:
    allowance = ByteRateLimiter(ALLOWANCE)
    for sender in ("victim", "flood", "honest"):
        allowance.record_call(sender, 0)
    allowance.charge_body("honest", 80, 0)
    for _ in range(2):
        allowance.charge_failure("flood", 0)
    for sender in ("flood", "honest"):
        assert not allowance.is_spent(sender, 0)
        allowance.note_begin(sender)
    assert allowance.is_spent("flood", 0)
    assert not allowance.is_spent("honest", 0)
    allowance.note_end("flood")
    assert not allowance.is_spent("flood", 0)


def test_a_large_body_counts_more_than_many_small_ones_of_its_bytes() -> None:
    limits = ByteRateLimits(bytes_per_s=1, burst_bytes=1_000, large_bytes=100, small_bytes=0)
    for sizes, is_spent in ((10 * [60], False), ([600], True)):
        allowance = ByteRateLimiter(limits)
        allowance.record_call("victim", 0)
        allowance.record_call("flood", 0)
        for size_bytes in sizes:
            allowance.charge_body("flood", size_bytes, 0)
        assert allowance.is_spent("flood", 0) is is_spent


def test_arriving_bodies_count_as_the_latest_one_if_that_was_large() -> None:
    limits = ByteRateLimits(bytes_per_s=1, burst_bytes=1_000, large_bytes=100, small_bytes=0)
    allowance = ByteRateLimiter(limits)
    allowance.record_call("victim", 0)
    allowance.record_call("flood", 0)
    allowance.charge_body("flood", 200, 0)  # counts as 400
    assert [allowance.is_spent("flood", 0, arriving) for arriving in (0, 1, 2)] == [0, 0, 1]
    allowance.charge_body("flood", 1, 0)
    assert not allowance.is_spent("flood", 0, 2)


def test_the_charge_of_a_sender_is_bounded() -> None:
    allowance = ByteRateLimiter(ALLOWANCE)
    allowance.record_call("flood", 0)
    allowance.charge_body("flood", 1_000_000, 0)
    allowance.record_call("victim", 13)
    assert allowance.is_spent("flood", 13.9) and not allowance.is_spent("flood", 14.1)


async def test_a_sender_has_fewer_slots_while_others_call() -> None:
    limits = InboundLimits(100, 250, 250, bodies_per_sender=3, bodies_per_sender_shared=1)
    for others, expected in ((), [True, True, True]), (("beta",), [True, False, False]):
        inbound = Inbound(limits)
        for other in others:
            (await inbound.take(other, at_once(1))).release()
        senders, tasks = await slots_of(inbound, "acme", "acme", "acme")
        assert [sender.began.is_set() for sender in senders] == expected
        await finish(senders, tasks)


async def test_a_spent_allowance_comes_back_with_time() -> None:
    limits = ByteRateLimits(bytes_per_s=1000, burst_bytes=50, small_bytes=1, shared_s=60)
    inbound = Inbound(InboundLimits(1000, 2000, 2000, wait_s=60, byte_rate=limits))
    (await inbound.take("victim", at_once(1))).release()
    (await inbound.take("flood", at_once(300))).release()
    waiting = asyncio.create_task(inbound.take("flood", at_once(1)))
    await asyncio.sleep(0)
    (await inbound.take("victim", at_once(1))).release()
    assert not waiting.done()
    (await waiting).release()


async def test_a_spent_sender_that_waits_too_long_is_refused() -> None:
    limits = ByteRateLimits(bytes_per_s=1, burst_bytes=50, small_bytes=1, shared_s=60)
    inbound = Inbound(InboundLimits(1000, 2000, 2000, wait_s=0.2, byte_rate=limits))
    (await inbound.take("victim", at_once(1))).release()
    (await inbound.take("flood", at_once(900))).release()
    with pytest.raises(FarmFullError):
        await inbound.take("flood", at_once(1))
    assert inbound.held_bytes == 0
