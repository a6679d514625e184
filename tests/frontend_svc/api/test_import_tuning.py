"""Tuning records over gRPC: a farm signs its reports, and farms that trust it take them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.errors import (
    ExpiredManifestError,
    ForgedManifestError,
    KernelfarmError,
    MalformedMessageError,
    PoisonedBlobError,
    UntrustedKeyError,
)
from kernelfarm.signing import Keyring, Signer, Space, check_content, check_manifest, new_signer
from kernelfarm.signing.key_files import PROGRAM_KEY, PUBLIC_KEYS, read_keyring, read_signer
from kernelfarm.signing.verify import CacheAddress
from kernelfarm.tuning import MAX_TUNING_REPORTS, TuningSubject
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.wire.manifest import manifest_from_proto
from kernelfarm.wire.tuning import (
    MAX_RECORD_BYTES,
    tuning_record_from_bytes,
    tuning_record_to_bytes,
    tuning_subject_to_proto,
)
from tests.support.farm import Farm
from tests.support.tuning_callers import TuningCaller
from tests.support.tuning_records import new_subject, record_of, signed_record

FAST = (30_000, 10_000, 20_000)
DAY_S = 24 * 3600


@pytest.fixture(scope="module")
def origin(farm: Farm) -> Signer:
    """Another farm whose programs this farm trusts: it has the same key."""
    return read_signer(farm.keys / PROGRAM_KEY, Space.PROGRAMS)


@pytest.fixture
def admin(farm: Farm) -> Iterator[CacheAdmin]:
    with CacheAdmin(farm.endpoint) as opened:
        yield opened


@pytest.fixture
def caller(farm: Farm) -> Iterator[TuningCaller]:
    found = TuningCaller(farm.endpoint)
    yield found
    found.close()


def asked(subject: TuningSubject) -> api.TuningSubject:
    return tuning_subject_to_proto(subject)


def test_an_imported_record_is_a_decision_at_once(
    admin: CacheAdmin, caller: TuningCaller, origin: Signer
) -> None:
    subject = new_subject()
    assert not caller.look_up(asked(subject), can_measure=False).HasField("winner")
    record = signed_record(origin, record_of(subject, FAST, FAST, FAST))
    assert admin.import_tuning(record) == 3
    found = caller.look_up(asked(subject))
    assert (found.winner.candidate, found.winner.reports) == (1, 3)
    assert not found.should_measure and found.retry_after_ms == 0
    assert admin.import_tuning(record) == 0


def test_reports_of_this_farm_stay_and_count_with_imported_ones(
    admin: CacheAdmin, caller: TuningCaller, origin: Signer
) -> None:
    subject = new_subject()
    caller.report(asked(subject), [1_000, 9_000, 9_000])
    assert admin.import_tuning(signed_record(origin, record_of(subject, FAST))) == 1
    record = caller.read(asked(subject))
    assert record is not None
    stated = tuning_record_from_bytes(record.content)
    assert sorted(report.times_ns for report in stated.reports) == [(1_000, 9_000, 9_000), FAST]
    # What comes back is what the farm has already.
    assert admin.import_tuning(record) == 0


def test_a_farm_signs_what_it_has_for_its_own_namespace(farm: Farm, caller: TuningCaller) -> None:
    subject = new_subject()
    assert caller.read(asked(subject)) is None
    caller.report(asked(subject), FAST)
    record = caller.read(asked(subject))
    assert record is not None
    manifest = manifest_from_proto(record.manifest)
    address = CacheAddress("default", Space.PROGRAMS, subject.record_digest)
    check_manifest(manifest, address, read_keyring(farm.keys / PUBLIC_KEYS), time.time())
    check_content(manifest, record.content)
    assert tuning_record_from_bytes(record.content).state.winner == 1


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("signer", UntrustedKeyError),
        ("content", PoisonedBlobError),
        ("manifest", ForgedManifestError),
        ("age", ExpiredManifestError),
        ("key", MalformedMessageError),
        ("space", UntrustedKeyError),
        ("size", MalformedMessageError),
        ("bytes", MalformedMessageError),
        ("nothing", MalformedMessageError),
    ],
)
def test_what_is_not_the_record_that_a_trusted_farm_signed_adds_nothing(
    admin: CacheAdmin,
    caller: TuningCaller,
    origin: Signer,
    what: str,
    error: type[KernelfarmError],
) -> None:
    subject, changes = new_subject(), dict[str, Any]()
    signer, record = origin, record_of(subject, FAST, FAST, FAST)
    match what:
        case "signer":
            signer = new_signer(Space.PROGRAMS)
        case "age":
            changes = {"not_after_s": int(time.time()) - 91 * DAY_S}
        case "key":
            changes = {"key": new_subject().record_digest}
        case "space":
            changes = {"space": Space.KERNELS}
        case "size":
            changes = {"content": b"\0" * (MAX_RECORD_BYTES + 1)}
        case "bytes":
            changes = {"content": b"no record"}
    sent = signed_record(signer, record, **changes)
    match what:
        case "content":
            sent.content = tuning_record_to_bytes(record_of(subject, FAST, FAST))
        case "manifest":
            sent.manifest.namespace = "default"
        case "nothing":
            sent = manifest_pb2.SignedVariant()
    with pytest.raises(error):
        admin.import_tuning(sent)
    assert caller.read(asked(subject)) is None


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "format 2; expected 1: it was made by another version"),
    ({"reports": []}, "0 reports; expected 1 to 9"),
    ({"reports": [api.TuningReport(reporter=b"short", times_ns=FAST)]}, "a reporter of 5 bytes"),
    ({"reports": [api.TuningReport(reporter=bytes(16), times_ns=[1])]}, "1 times of 3 candidates"),
    (
        {"reports": [api.TuningReport(reporter=bytes(16), times_ns=FAST)] * 2},
        "expected each reporter once",
    ),
    (
        {"reports": [api.TuningReport(reporter=bytes(16))] * (MAX_TUNING_REPORTS + 1)},
        "10 reports; expected 1 to 9",
    ),
    ({"subject": api.TuningSubject(digest=bytes(32), candidates=3)}, "a device of 0 characters"),
]


@pytest.mark.parametrize(("changes", "said"), FORMS)
def test_a_signed_record_of_another_form_is_refused(
    admin: CacheAdmin, origin: Signer, changes: dict[str, Any], said: str
) -> None:
    record = record_of(new_subject(), FAST)
    fields: dict[str, Any] = {
        "format": 1,
        "subject": asked(record.subject),
        "reports": [api.TuningReport(reporter=bytes(16), times_ns=FAST)],
    }
    content = api.TuningRecord(**fields | changes).SerializeToString()
    with pytest.raises(MalformedMessageError, match=said):
        admin.import_tuning(signed_record(origin, record, content=content))


def test_keys_for_traces_sign_no_records(admin: CacheAdmin) -> None:
    signer = new_signer(Space.TRACES)
    record = record_of(new_subject(), FAST)
    manifest = manifest_from_proto(signed_record(signer, record).manifest)
    address = CacheAddress("another", Space.PROGRAMS, record.subject.record_digest)
    with pytest.raises(UntrustedKeyError):
        check_manifest(manifest, address, Keyring((signer.trusted,)), time.time())
