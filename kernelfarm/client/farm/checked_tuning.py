"""Verifies a signed tuning record before any part of it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelfarm.client.farm.checked_program import CheckManifest
from kernelfarm.errors import MalformedMessageError, ManifestMismatchError
from kernelfarm.signing import CacheAddress, Manifest, Space, check_content
from kernelfarm.tuning import TuningRecord, TuningSubject
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_to_proto
from kernelfarm.wire.tuning import MAX_RECORD_BYTES, tuning_record_from_bytes


@dataclass(frozen=True, slots=True)
class SignedTuning:
    """A tuning record with the manifest and the content in which a farm states it."""

    record: TuningRecord
    manifest: Manifest
    content: bytes = field(repr=False)

    def to_proto(self) -> manifest_pb2.SignedVariant:
        """The message that has both."""
        manifest = manifest_to_proto(self.manifest)
        return manifest_pb2.SignedVariant(manifest=manifest, content=self.content)

    @property
    def title(self) -> str:
        """Its subject in one line."""
        return title_of(self.record.subject)


def title_of(subject: TuningSubject) -> str:
    """A subject in one line."""
    return f"tuning of {subject.digest.hex()[:16]} on {subject.device!r}"


def stated_tuning(manifest: Manifest, content: bytes) -> SignedTuning:
    """What a manifest and its content state; neither signature nor expiry are verified.

    Raises:
        PoisonedBlobError: the content is not the one that the manifest names.
        MalformedMessageError: it is no tuning record, or not that of its manifest.
    """
    if len(content) > MAX_RECORD_BYTES:  # before any work on it
        raise MalformedMessageError(
            f"a tuning record of {len(content)} bytes; expected at most {MAX_RECORD_BYTES}"
        )
    check_content(manifest, content)
    record = tuning_record_from_bytes(content)
    expected = record.subject.record_digest
    if (manifest.space, manifest.key) != (Space.PROGRAMS, expected):
        raise MalformedMessageError(
            f"a tuning record in a manifest of {manifest.space.name.lower()}"
            f" {manifest.key.hex()[:16]}; expected programs {expected.hex()[:16]}"
        )
    return SignedTuning(record, manifest, content)


def check_tuning(
    found: SignedTuning,
    namespaces: Sequence[str],
    check: CheckManifest,
    subject: TuningSubject | None = None,
) -> None:
    """Verifies that a record is one of these namespaces, and of `subject` if that is stated.

    Raises:
        IntegrityError: the manifest is not what a farm made for this subject.
    """
    if subject is not None and found.record.subject != subject:
        raise ManifestMismatchError(f"{found.title}; expected {title_of(subject)}")
    manifest = found.manifest
    namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
    check(manifest, CacheAddress(namespace, Space.PROGRAMS, manifest.key))
