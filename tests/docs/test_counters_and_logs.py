"""Each counter and each log event of the code is on the page, and nothing else is."""

from __future__ import annotations

import re
from dataclasses import fields

from kernelfarm.cache.sweeper import SweepResult
from tests.support.code_events import client_counters, farm_counters, log_events
from tests.support.markdown import code_names, table_rows
from tests.support.source_code import ROOT

PAGE = ROOT / "docs" / "counters_and_logs.md"

COUNTERS = {
    re.sub(r"(?<=[._])[A-Z]+\b", "*", name)
    for row in table_rows(PAGE, "counter")
    for name in code_names(row[0])
}
EVENTS = {
    code_names(row[0])[0]: set(code_names(row[2])) for row in table_rows(PAGE, "event | level")
}
OBJECTS = {
    "swept": {field.name for field in fields(SweepResult)},
    "lines_suppressed": {"of", "tenant", "cause", "suppressed"},
}
"""Fields of events that the code passes as one object."""


def test_each_counter_of_the_client_is_on_the_page() -> None:
    assert {name for name in COUNTERS if "." in name} == client_counters()


def test_each_counter_of_the_farm_is_on_the_page() -> None:
    assert {name for name in COUNTERS if "." not in name} == farm_counters()


def test_each_log_event_is_on_the_page() -> None:
    assert EVENTS.keys() == log_events().keys()


def test_each_field_of_an_event_is_on_the_page() -> None:
    assert {
        event: OBJECTS[event] if "*" in fields_of else fields_of
        for event, fields_of in log_events().items()
    } == EVENTS
