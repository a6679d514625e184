"""Inductor's remote caches at the farm: processes that compile for the CPU, with a folder each."""

from __future__ import annotations

from typing import Any

from tests.support.drop_in_programs import compile_with_inductor, publishing
from tests.support.trace_machines import Fleet


def published(fleet: Fleet) -> dict[str, Any]:
    seen = compile_with_inductor(fleet, "publisher", **publishing(fleet))
    assert (seen["hit"], seen["miss"]) == (0, 2), seen["said"]
    assert seen["counters"]["inductor_cache.farm.published"] == 2
    return seen


def test_a_process_with_an_empty_folder_lowers_no_graph(fleet: Fleet) -> None:
    published(fleet)
    seen = compile_with_inductor(fleet, "reader")
    assert (seen["hit"], seen["miss"]) == (2, 0), seen["said"]
    assert seen["counters"]["inductor_cache.farm.hits"] == 2
    assert dict(fleet.meddling.calls) == {"LookupTrace": 2}
    assert not seen["warnings"]
