"""Codec of tuning subjects and of the records that farms sign of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import MalformedMessageError
from kernelfarm.tuning import (
    MAX_CANDIDATES,
    MAX_DEVICE_CHARS,
    MAX_TIME_NS,
    MAX_TUNING_REPORTS,
    REPORTER_BYTES,
    TuningRecord,
    TuningReport,
    TuningSubject,
)
from kernelfarm.v1 import tuning_service_pb2 as pb

RECORD_FORMAT: Final = 1
"""The version of `kernelfarm.v1.TuningRecord` that this version writes and reads."""
MAX_RECORD_BYTES: Final = 64 << 10
"""Of a serialized record: 9 reports on 256 candidates take at most 17 KB."""


def tuning_subject_to_proto(subject: TuningSubject) -> pb.TuningSubject:
    """The message of a subject."""
    return pb.TuningSubject(
        digest=subject.digest, device=subject.device, candidates=subject.candidates
    )


def tuning_subject_from_proto(subject: pb.TuningSubject) -> TuningSubject:
    """The subject of a message.

    Raises:
        MalformedMessageError: its digest, device or number of candidates is out of range.
    """
    if len(subject.digest) != DIGEST_BYTES:
        raise MalformedMessageError(
            f"a digest of {len(subject.digest)} bytes; expected {DIGEST_BYTES}"
        )
    if not 2 <= subject.candidates <= MAX_CANDIDATES:
        raise MalformedMessageError(
            f"{subject.candidates} candidates; expected 2 to {MAX_CANDIDATES}"
        )
    if not 1 <= len(subject.device) <= MAX_DEVICE_CHARS:
        raise MalformedMessageError(
            f"a device of {len(subject.device)} characters; expected 1 to {MAX_DEVICE_CHARS}"
        )
    return TuningSubject(subject.digest, subject.device, subject.candidates)


def check_times(times_ns: Sequence[int], candidates: int) -> None:
    """Checks the times of one report.

    Raises:
        MalformedMessageError: there is not one for each candidate, or one is out of range.
    """
    if len(times_ns) != candidates:
        raise MalformedMessageError(
            f"{len(times_ns)} times of {candidates} candidates; expected one of each, 0 for those"
            " that were not measured"
        )
    if not any(times_ns) or max(times_ns) > MAX_TIME_NS:
        raise MalformedMessageError(
            f"times up to {max(times_ns)} ns; expected at least one, and at most an hour"
        )


def tuning_record_to_bytes(record: TuningRecord) -> bytes:
    """The content that a farm signs; equal records have equal bytes."""
    message = pb.TuningRecord(
        format=RECORD_FORMAT,
        subject=tuning_subject_to_proto(record.subject),
        reports=[
            pb.TuningReport(reporter=report.reporter, times_ns=report.times_ns)
            for report in sorted(record.reports, key=lambda report: report.reporter)
        ],
    )
    return message.SerializeToString(deterministic=True)


def tuning_record_from_bytes(content: bytes) -> TuningRecord:
    """The record of a content, whose size is checked before it is parsed.

    Raises:
        MalformedMessageError: it is too large, no record, or one of another format.
    """
    if len(content) > MAX_RECORD_BYTES:
        raise MalformedMessageError(
            f"a tuning record of {len(content)} bytes; expected at most {MAX_RECORD_BYTES}"
        )
    try:
        message = pb.TuningRecord.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(
            f"{len(content)} bytes that are no kernelfarm.v1.TuningRecord"
        ) from error
    if message.format != RECORD_FORMAT:
        raise MalformedMessageError(
            f"a tuning record of format {message.format}; expected {RECORD_FORMAT}: it was made by"
            " another version of kernelfarm, and is not needed to use programs"
        )
    subject = tuning_subject_from_proto(message.subject)
    if not 1 <= len(message.reports) <= MAX_TUNING_REPORTS:
        raise MalformedMessageError(
            f"a tuning record of {len(message.reports)} reports; expected 1 to {MAX_TUNING_REPORTS}"
        )
    return TuningRecord(subject, _reports(message.reports, subject.candidates))


def _reports(messages: Sequence[pb.TuningReport], candidates: int) -> tuple[TuningReport, ...]:
    found = []
    for message in messages:
        if len(message.reporter) != REPORTER_BYTES:
            raise MalformedMessageError(
                f"a reporter of {len(message.reporter)} bytes; expected {REPORTER_BYTES}"
            )
        check_times(message.times_ns, candidates)
        found.append(TuningReport(message.reporter, tuple(message.times_ns)))
    names = [report.reporter for report in found]
    if names != sorted(set(names)):
        raise MalformedMessageError(
            "a tuning record whose reports are not sorted by reporter; expected each reporter once"
        )
    return tuple(found)
