"""Triton's cache at the farm: processes that compile ahead of time, with a folder each."""

from __future__ import annotations

from typing import Any

from kernelfarm.v1 import manifest_pb2
from tests.support.drop_in_programs import compile_with_triton, entries_below, publishing
from tests.support.trace_machines import Fleet


def published(fleet: Fleet) -> dict[str, Any]:
    seen = compile_with_triton(fleet, "publisher", **publishing(fleet))
    assert seen["hits"] == [False, False], seen["said"]
    assert seen["counters"]["triton_cache.farm.published"] == 2
    return seen


def test_a_process_with_an_empty_folder_compiles_nothing(fleet: Fleet) -> None:
    made = published(fleet)
    seen = compile_with_triton(fleet, "reader")
    assert seen["hits"] == [True, True]
    assert seen["binaries"] == made["binaries"]
    assert seen["counters"]["triton_cache.farm.hits"] == 2
    assert dict(fleet.meddling.calls) == {"LookupTrace": 2}
    assert not seen["warnings"]
    # The next process finds the same on kernelfarm's disk, and verifies it again.
    again = compile_with_triton(fleet, "reader")
    assert again["hits"] == [True, True]
    assert again["counters"]["triton_cache.disk.hits"] == 2
    assert not fleet.meddling.calls


def test_what_triton_compiled_itself_needs_no_farm(fleet: Fleet) -> None:
    fleet.meddling.stop()
    first = compile_with_triton(fleet, "one")
    assert (first["hits"], first["warnings"]) == ([False, False], 1)
    assert len(entries_below(fleet.folder / "one")) == 2
    again = compile_with_triton(fleet, "one")
    assert (again["hits"], again["warnings"]) == ([True, True], 0)
    fleet.meddling.start()


def test_a_tampered_kernel_is_compiled_instead(fleet: Fleet) -> None:
    made = published(fleet)

    def tamper(signed: manifest_pb2.SignedVariant) -> None:
        signed.content = signed.content[:-1] + bytes([signed.content[-1] ^ 1])

    fleet.meddling.trace_change = tamper
    seen = compile_with_triton(fleet, "reader")
    assert (seen["hits"], seen["warnings"]) == ([False, False], 1)
    assert seen["binaries"] == made["binaries"]
    assert seen["counters"]["refused.drop_in.poisoned_blob"] == 2
