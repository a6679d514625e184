"""Traces of the farm that a machine cannot trust: they are not used, and the graph is traced."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernelfarm.client.traces.header import joined, parted
from kernelfarm.client.traces.shared import TraceNotPublishedWarning
from kernelfarm.signing import Signer, Space, new_signer
from kernelfarm.signing.key_files import (
    PROGRAM_KEY,
    PUBLIC_KEYS,
    read_keyring,
    read_signer,
    write_keyring,
    write_signer,
)
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto, manifest_to_proto
from tests.support.trace_machines import Fleet, counted, traces_made

pytestmark = pytest.mark.usefixtures("prompt_repetitions")


def test_without_the_private_key_nothing_is_published(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.machine()
        fleet.works()
        assert (traces_made(), fleet.meddling.calls["PutTrace"]) == (1, 0)
        assert counted()["warm.farm.misses"] == 1


def test_who_trusts_no_key_for_traces_never_asks(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    write_keyring(pinned, [key for key in known if key.space is not Space.TRACES])
    for publishes in (False, True):
        fleet.machine(publishes=publishes, TRUSTED_KEYS_FILE=str(pinned))
        fleet.works()
        assert traces_made() == 1
        assert not {"LookupTrace", "PutTrace"} & fleet.meddling.calls.keys()


def test_a_key_that_is_not_trusted_any_more_ends_what_is_on_disk(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    disk = fleet.machine()
    fleet.works()
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    others = [key for key in known if key.space is not Space.TRACES]
    write_keyring(pinned, [*others, new_signer(Space.TRACES).trusted])
    fleet.machine(disk=disk.name, TRUSTED_KEYS_FILE=str(pinned))
    seen = fleet.works()
    assert traces_made() == 1
    assert seen["refused.disk.untrusted_key"] == seen["refused.warm_farm.untrusted_key"] == 1


def test_the_farm_takes_no_trace_of_a_key_that_it_does_not_know(fleet: Fleet) -> None:
    unknown = new_signer(Space.TRACES)
    write_signer(fleet.folder / "unknown.key", unknown)
    fleet.machine(ENDPOINT=fleet.farm.endpoint, TRACE_KEY_FILE=str(fleet.folder / "unknown.key"))
    with pytest.warns(TraceNotPublishedWarning, match="expected a trusted key"):
        seen = fleet.works()
    assert seen["warm.farm.not_published.untrusted_key"] == 1


def resigned(fleet: Fleet, **changes: Any) -> Callable[[manifest_pb2.SignedVariant], None]:
    """The same trace under another statement that somebody who may signed."""

    def change(trace: manifest_pb2.SignedVariant) -> None:
        made = fleet.signer().sign(replace(manifest_from_proto(trace.manifest), **changes))
        trace.manifest.CopyFrom(manifest_to_proto(made))

    return change


def forged(fleet: Fleet) -> Callable[[manifest_pb2.SignedVariant], None]:
    def change(trace: manifest_pb2.SignedVariant) -> None:
        trace.manifest.epoch += 1000

    return change


def signed_by(signer: Signer) -> Callable[[manifest_pb2.SignedVariant], None]:
    def change(trace: manifest_pb2.SignedVariant) -> None:
        made = signer.sign(manifest_from_proto(trace.manifest))
        trace.manifest.CopyFrom(manifest_to_proto(made))

    return change


def truncated(trace: manifest_pb2.SignedVariant) -> None:
    trace.content = trace.content[:-9]


def with_content(
    fleet: Fleet, rewrite: Callable[[pb.Trace], None]
) -> Callable[[manifest_pb2.SignedVariant], None]:
    """Another content, signed by somebody who may."""

    def change(trace: manifest_pb2.SignedVariant) -> None:
        made = pb.Trace.FromString(trace.content)
        rewrite(made)
        trace.content = made.SerializeToString()
        resigned(fleet, content=blob_ref(trace.content))(trace)

    return change


def cut_entry(trace: pb.Trace) -> None:
    trace.entry = trace.entry[:-9]


def another_program(trace: pb.Trace) -> None:
    trace.program_key = b"\1" * 32


def another_graph(trace: pb.Trace) -> None:
    header, graph = parted(trace.entry)
    parts = {**header.parts, "grad": "another"}
    trace.entry = joined(replace(header, parts=parts).to_json(), graph)


REFUSED: dict[str, tuple[str, Callable[[Fleet], Any]]] = {
    "forged": ("forged_manifest", forged),
    "by an unknown key": ("untrusted_key", lambda f: signed_by(new_signer(Space.TRACES))),
    "by who signs programs": (
        "untrusted_key", lambda f: signed_by(read_signer(f.keys / PROGRAM_KEY, Space.PROGRAMS)),
    ),
    "of another digest": ("manifest_mismatch", lambda f: resigned(f, key=b"\1" * 32)),
    "of another namespace": ("manifest_mismatch", lambda f: resigned(f, namespace="other")),
    "of another tenant": ("manifest_mismatch", lambda f: resigned(f, namespace="default/acme")),
    "of another space": ("untrusted_key", lambda f: resigned(f, space=Space.PROGRAMS)),
    "expired": ("expired_manifest", lambda f: resigned(f, not_after_s=int(time.time()) - 10)),
    "truncated": ("poisoned_blob", lambda f: truncated),
    "truncated before it was signed": ("malformed_message", lambda f: with_content(f, cut_entry)),
    "of another program": ("manifest_mismatch", lambda f: with_content(f, another_program)),
    "of another graph": ("manifest_mismatch", lambda f: with_content(f, another_graph)),
}  # fmt: skip


@pytest.mark.parametrize("harm", REFUSED)
def test_a_trace_that_cannot_be_trusted_is_not(fleet: Fleet, harm: str) -> None:
    reason, change = REFUSED[harm]
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine()
    fleet.meddling.trace_change = change(fleet)
    seen = fleet.works()
    refused = {name: times for name, times in seen.items() if name.startswith("refused.")}
    assert refused == {f"refused.warm_farm.{reason}": 1}
    assert (traces_made(), seen["farm.hits"]) == (1, 1)
    assert "warm.farm.hits" not in seen


def test_the_trace_of_one_graph_is_none_of_another(fleet: Fleet) -> None:
    """As it was signed, not changed at all: only its place is wrong."""
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine()
    kept: list[manifest_pb2.SignedVariant] = []
    fleet.meddling.trace_change = lambda trace: kept.append(
        manifest_pb2.SignedVariant.FromString(trace.SerializeToString())
    )
    fleet.works()
    fleet.number += 0.25
    fleet.machine(publishes=True)
    fleet.meddling.trace_change = lambda _: None
    fleet.works()
    fleet.machine()
    fleet.meddling.trace_change = lambda trace: trace.CopyFrom(kept[0])
    seen = fleet.works()
    assert (traces_made(), seen["refused.warm_farm.manifest_mismatch"]) == (1, 1)
