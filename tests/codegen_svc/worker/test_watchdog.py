"""A worker is stuck only if it could take jobs."""

from __future__ import annotations

from pathlib import Path

from codegen_svc.worker.consumer import ConsumerStatus
from codegen_svc.worker.watchdog import WorkerHealth, WorkerState


def judged(notes: ConsumerStatus, *, answers: bool, until_s: int) -> list[WorkerState]:
    """States of a worker second by second, with unchanged notes; the last is its final one."""
    judgement = WorkerHealth(began_s=0, wedged_after_s=12)
    states = [judgement.state(notes, float(now), lambda: answers) for now in range(until_s)]
    assert judgement.is_wedged(until_s) == (states[-1] is WorkerState.STUCK)
    return states


def test_a_worker_is_stuck_only_if_it_could_take_jobs(tmp_path: Path) -> None:
    began = ConsumerStatus(tmp_path, ran_s=0, polled_s=0, up=1, has_reported=True, pool={1})
    assert judged(began, answers=True, until_s=30)[-1] is WorkerState.STUCK
    assert judged(began, answers=False, until_s=30)[-1] is WorkerState.WAITING
    busy = ConsumerStatus(tmp_path, 30, 0, up=2, busy=2, has_reported=True, pool={1, 2})
    assert set(judged(busy, answers=True, until_s=30)) == {WorkerState.SERVING}
    free = ConsumerStatus(tmp_path, 30, 0, up=2, busy=1, has_reported=True, pool={1, 2})
    assert judged(free, answers=True, until_s=30)[-1] is WorkerState.STUCK
    restarting = ConsumerStatus(tmp_path, 30, 0, pool={1, 2})
    assert set(judged(restarting, answers=True, until_s=30)) == {WorkerState.POLLING}
    empty = ConsumerStatus(tmp_path, 30, 0)
    assert judged(empty, answers=True, until_s=30)[-1] is WorkerState.STUCK
    ending = ConsumerStatus(tmp_path, 0, 0, up=1, busy=1, is_draining=True, pool={1})
    assert set(judged(ending, answers=True, until_s=90)) == {WorkerState.DRAINING}
    never = ConsumerStatus(tmp_path)
    assert set(judged(never, answers=True, until_s=60)) == {WorkerState.STARTING}
