"""Calls and programs share one grace: a supervisor kills what takes much longer."""

from __future__ import annotations

from frontend_svc.drain_deadline import DrainDeadline


def test_what_calls_took_is_not_left_for_programs() -> None:
    now_s = [100.0]
    drain = DrainDeadline(20.0, clock=lambda: now_s[0])
    drain.begin()
    now_s[0] += 12.0
    assert drain.left_s() == 8.0


def test_programs_always_get_a_second_to_be_published() -> None:
    now_s = [100.0]
    drain = DrainDeadline(20.0, clock=lambda: now_s[0])
    drain.begin()
    now_s[0] += 25.0
    assert drain.left_s() == 1.0
