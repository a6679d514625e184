"""Calls and builds share one grace of a drain."""

from __future__ import annotations

from frontend_svc.drain_deadline import DrainDeadline


def test_builds_have_the_time_that_calls_left() -> None:
    now_s = [100.0]
    drain = DrainDeadline(20.0, clock=lambda: now_s[0])
    drain.begin()
    now_s[0] += 12.0
    assert drain.left_s() == 8.0


def test_builds_always_have_a_second_to_publish() -> None:
    now_s = [100.0]
    drain = DrainDeadline(20.0, clock=lambda: now_s[0])
    drain.begin()
    now_s[0] += 25.0
    assert drain.left_s() == 1.0
