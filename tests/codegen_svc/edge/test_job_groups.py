"""Small jobs share a message if that leaves no worker idle; others are sent alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from codegen_svc.edge.fair_queue import FairQueue, JobClass, Permit
from codegen_svc.edge.job_groups import JobGroups
from codegen_svc.edge.job_metrics import QueuedJobRecord
from codegen_svc.edge.jobs import KernelJob, PendingJob
from kernelfarm.cache import EdgeCache, Space

GROUP_S = 0.25


@dataclass
class Queue:
    """Groups that were sent, by the names of their jobs; they run until the test ends them."""

    slots: int
    group_s: float = GROUP_S
    cache: EdgeCache = field(default_factory=lambda: EdgeCache("redis://x", space=Space.KERNELS))
    sent: list[str] = field(default_factory=list)
    ends: list[asyncio.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        permits = FairQueue(lambda: self.slots, lambda: 2 * self.slots)
        self.groups = JobGroups(permits, lambda: self.slots, self.group_s, self._send)

    async def add(
        self, names: str, cost_s: float = 0.03, tenant: str = "default", **options: bool
    ) -> None:
        """Adds a job for each letter."""
        is_alone = options.pop("is_alone", False)
        for name in names:
            job = KernelJob(name.encode(), name, "cpu:any", "cpu", b"", cost_s=cost_s)
            pending = PendingJob(
                job,
                JobClass(tenant, **options),
                self.cache,
                "",
                QueuedJobRecord("cpu", "interactive", 0.0),
                parent="",
                is_alone=is_alone,
                ended=asyncio.get_running_loop().create_future(),
            )
            self.groups.add(pending)
        await settle()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number].set()
        await settle()

    async def _send(self, jobs: Sequence[PendingJob], permit: Permit) -> None:
        self.sent.append("".join(job.job.name for job in jobs))
        self.ends.append(asyncio.Event())
        await self.ends[-1].wait()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_small_jobs_share_messages_of_a_quarter_of_a_second() -> None:
    queue = Queue(slots=1)
    await queue.add("abcdefghijklmnopqrst")
    assert queue.sent == ["abcdefgh", "ijklmnop"], "and the next group waits for a permit"
    assert (queue.groups.sent, queue.groups.waiting) == (16, 4)
    await queue.end(0)
    assert queue.sent[2:] == ["qrst"]
    await queue.end(1, 2)
    assert (queue.groups.sent, queue.groups.waiting) == (0, 0)


async def test_every_free_slot_gets_work_before_a_group_grows() -> None:
    for slots in (2, 3, 4, 8, 16, 20):
        queue = Queue(slots)
        await queue.add("abcdefghijklmnop")
        assert len(queue.sent) == min(slots, 16), queue.sent
        assert "".join(queue.sent) == "abcdefghijklmnop"
        sizes = {len(group) for group in queue.sent}
        assert max(sizes) - min(sizes) <= 1, queue.sent
        await queue.groups.close()


async def test_jobs_that_come_while_slots_are_busy_take_the_free_ones() -> None:
    queue = Queue(slots=4)
    await queue.add("ab", is_alone=True)
    assert queue.sent == ["a", "b"]
    await queue.add("cdefgh")
    assert queue.sent[2:] == ["cde", "fgh"], "two slots are free"


async def test_groups_shrink_towards_the_end_so_that_all_slots_end_together() -> None:
    queue = Queue(slots=2)
    await queue.add("abcdefghijklmnopqrstuvwxyz")
    assert queue.sent == ["abcdefgh", "ijklmnop", "qrstu", "vwx"]
    await queue.end(0)
    assert queue.sent[4:] == ["y"]


@pytest.mark.parametrize("options", [{"is_slow": True}, {"is_alone": True}])
async def test_slow_jobs_and_those_that_were_sent_before_are_sent_alone(
    options: dict[str, bool],
) -> None:
    queue = Queue(slots=1)
    await queue.add("ab", **options)
    for _ in "ab":
        await queue.end(len(queue.sent) - 1)
    assert queue.sent == ["a", "b"]


async def test_a_job_as_long_as_a_group_is_sent_alone() -> None:
    queue = Queue(slots=1)
    await queue.add("ab", cost_s=0.3)
    assert queue.sent == ["a", "b"]


async def test_no_group_has_jobs_of_two_tenants() -> None:
    queue = Queue(slots=1)
    await queue.add("ab")
    await queue.add("cd", tenant="other")
    await queue.end(0)
    assert queue.sent == ["ab", "cd"]


async def test_a_setting_sends_every_job_alone() -> None:
    queue = Queue(slots=1, group_s=0.0)
    await queue.add("abc")
    await queue.end(0)
    assert queue.sent == ["a", "b", "c"]


async def test_a_job_that_was_given_up_is_not_sent() -> None:
    queue = Queue(slots=1)
    await queue.add("a", is_alone=True)
    await queue.add("b", is_alone=True)
    await queue.add("cd")
    waiting = queue.groups._waiting[JobClass("default")]
    waiting[0].ended.cancel()
    await queue.end(0)
    assert queue.sent == ["a", "b", "d"]
