"""Tuning records as the frontend of another farm signs them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from kernelfarm.signing import Manifest, Signer, Space, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.tuning import TuningRecord, TuningReport, TuningSubject
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_to_proto
from kernelfarm.wire.tuning import tuning_record_to_bytes

_numbers = count(1)


def new_subject(**changes: Any) -> TuningSubject:
    """A subject of three candidates that no other test of the process has."""
    subject = TuningSubject(next(_numbers).to_bytes(32, "big"), "a chip, driver 1", 3)
    return replace(subject, **changes)


def record_of(subject: TuningSubject, *reports: Sequence[int]) -> TuningRecord:
    """A record with these times, each of a reporter of its own."""
    named = (
        TuningReport(bytes([number]) * 16, tuple(times))
        for number, times in enumerate(reports, 0xB0)
    )
    return TuningRecord(subject, tuple(named))


def signed_record(
    signer: Signer, record: TuningRecord, *, content: bytes | None = None, **changes: Any
) -> manifest_pb2.SignedVariant:
    """A record that a key signed; fields of its manifest may be changed before."""
    stated = tuning_record_to_bytes(record) if content is None else content
    manifest = Manifest(
        namespace="another",
        space=Space.PROGRAMS,
        key=record.subject.record_digest,
        variant_id=variant_id(()),
        guard=(),
        tags=(),
        epoch=0,
        incarnation="cd" * 16,
        content=blob_ref(stated),
        blobs=(),
        cost_ms=0.0,
        not_after_s=int(time.time()) + 3600,
    )
    signed = signer.sign(replace(manifest, **changes))
    return manifest_pb2.SignedVariant(manifest=manifest_to_proto(signed), content=stated)
