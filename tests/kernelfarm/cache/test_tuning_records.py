"""Reports on the candidates of a kernel: who is asked to measure, and which candidate wins."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.cache import EdgeCache, tuning_records
from kernelfarm.cache.tuning_records import TuningRecords
from kernelfarm.tuning import (
    MAX_TUNING_REPORTS,
    WANTED_REPORTS,
    TuningRecord,
    TuningReport,
    TuningSubject,
    fastest_candidate,
)

SUBJECT = TuningSubject(bytes(range(32)), "a chip, driver 1", 3)
FAST = (10_000, 20_000, 30_000)
SLOW_CLOCK = (100_000, 200_000, 300_000)
LIE = (900_000, 0, 1)


@pytest.fixture
def records(cache: EdgeCache) -> TuningRecords:
    return TuningRecords(cache.client, cache.redis_keys)


async def test_few_of_many_clients_measure_and_all_get_the_winner(records: TuningRecords) -> None:
    names = [f"client{number}" for number in range(100)]
    asked = await asyncio.gather(*(records.find(SUBJECT, name, can_measure=True) for name in names))
    measuring = [name for name, state in zip(names, asked, strict=True) if state.may_measure]
    assert len(measuring) == WANTED_REPORTS
    for number, name in enumerate(measuring, 1):
        state = await records.add(SUBJECT, name, FAST if number > 1 else SLOW_CLOCK)
        assert (state.winner, state.reports) == (0, number)
    for name in names:
        state = await records.find(SUBJECT, name, can_measure=True)
        assert (state.winner, state.is_settled, state.may_measure) == (0, True, False)


async def test_the_permission_of_a_lost_client_passes_to_another_one(
    records: TuningRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_records, "MEASURING_MS", 30)
    for name in "abc":
        assert (await records.find(SUBJECT, name, can_measure=True)).may_measure
    assert not (await records.find(SUBJECT, "d", can_measure=True)).may_measure
    assert (await records.find(SUBJECT, "a", can_measure=True)).may_measure, "it started again"
    await asyncio.sleep(0.05)
    assert (await records.find(SUBJECT, "d", can_measure=True)).may_measure


async def test_a_client_that_cannot_measure_or_may_only_read_takes_no_permission(
    records: TuningRecords,
) -> None:
    for name in "abcdef":
        assert not (await records.find(SUBJECT, name, can_measure=False)).may_measure
    assert (await records.find(SUBJECT, "g", can_measure=True)).may_measure


async def test_one_wrong_report_is_outvoted(records: TuningRecords) -> None:
    await records.add(SUBJECT, "liar", LIE)
    assert (await records.find(SUBJECT, "a", can_measure=True)).winner == 2
    await records.add(SUBJECT, "a", FAST)
    await records.add(SUBJECT, "b", SLOW_CLOCK)
    state = await records.find(SUBJECT, "c", can_measure=True)
    assert (state.winner, state.is_settled) == (0, False)
    assert state.may_measure, "reports that contradict each other are followed by more"


async def test_the_reports_of_one_subject_are_bounded_and_a_client_has_one(
    records: TuningRecords,
) -> None:
    for number in range(MAX_TUNING_REPORTS + 5):
        state = await records.add(SUBJECT, f"client{number}", LIE if number % 2 else FAST)
    assert state.reports == MAX_TUNING_REPORTS and state.is_settled
    again = await records.add(SUBJECT, "client0", SLOW_CLOCK)
    assert again.reports == MAX_TUNING_REPORTS


@pytest.mark.parametrize(
    "other",
    [
        replace(SUBJECT, digest=bytes(32)),
        replace(SUBJECT, device="a chip, driver 2"),
        replace(SUBJECT, candidates=4),
    ],
)
async def test_subjects_of_other_kernels_devices_and_drivers_are_apart(
    records: TuningRecords, other: TuningSubject
) -> None:
    await records.add(SUBJECT, "a", FAST)
    assert (await records.find(other, "a", can_measure=False)).winner is None


async def test_the_records_unused_for_longest_are_dropped(
    records: TuningRecords, cache: EdgeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_records, "MAX_TUNING_RECORDS", 2)
    subjects = [replace(SUBJECT, digest=bytes([number]) * 32) for number in range(3)]
    for subject in subjects:
        await records.add(subject, "a", FAST)
        await asyncio.sleep(0.005)  # uses are ordered by milliseconds
    winners = [(await records.find(s, "a", can_measure=False)).winner for s in subjects]
    assert winners == [None, 0, 0]
    ttl_s = await cache.client.ttl(cache.redis_keys.tuning(SUBJECT.record_digest))
    assert ttl_s == -2, "a look-up makes no record"


async def test_reports_of_another_farm_are_added_once_and_replace_none(
    records: TuningRecords,
) -> None:
    assert await records.read(SUBJECT) is None
    names = [bytes([number]) * 16 for number in range(MAX_TUNING_REPORTS + 1)]
    await records.add(SUBJECT, names[0].hex(), LIE)
    await records.find(SUBJECT, "of a client that measures", can_measure=True)
    sent = TuningRecord(SUBJECT, tuple(TuningReport(name, FAST) for name in names[:3]))
    assert [await records.adopt(sent) for _ in range(2)] == [2, 0]
    kept = await records.read(SUBJECT)
    assert kept == TuningRecord(SUBJECT, (TuningReport(names[0], LIE), *sent.reports[1:]))
    assert kept.state.winner == 0
    many = TuningRecord(SUBJECT, tuple(TuningReport(name, SLOW_CLOCK) for name in names))
    assert await records.adopt(many) == MAX_TUNING_REPORTS - 3
    assert (await records.add(SUBJECT, names[1].hex(), LIE)).reports == MAX_TUNING_REPORTS


times = st.lists(st.integers(0, 10**9), min_size=3, max_size=3)


@given(st.lists(times, max_size=7))
def test_the_winner_was_measured_by_most_reports(reports: list[list[int]]) -> None:
    winner = fastest_candidate(reports)
    by_candidate = [sum(bool(times[c]) for times in reports) for c in range(3)]
    eligible = [c for c in range(3) if by_candidate[c] > len(reports) / 2]
    assert (winner is None) == (not eligible)
    if winner is not None:
        assert winner in eligible


@given(times.filter(all), st.integers(1, 1000))
def test_clocks_need_not_agree(honest: list[int], factor: int) -> None:
    reports = [honest, [time * factor for time in honest], [1, 10**9, 10**9]]
    winner = fastest_candidate(reports)
    assert winner is not None
    assert math.isclose(honest[winner], min(honest), rel_tol=1e-9)
