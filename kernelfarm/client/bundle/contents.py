"""The signed contents of a bundle, with the checks that all imports share.

Nothing here unpickles a package: its header and its signature are all that an import reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kernelfarm.client.bundle.layout import StoredProgram
from kernelfarm.client.farm.checked_tuning import SignedTuning, stated_tuning
from kernelfarm.client.packages import header as packages
from kernelfarm.client.traces import header as traces
from kernelfarm.client.traces.publication import PACKAGE_TAG
from kernelfarm.digest import DIGEST_BYTES, trace_digest
from kernelfarm.errors import (
    KernelfarmError,
    MalformedMessageError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space, check_content, check_manifest
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto

ENDS_IMPORT = (PermissionDeniedError, UnauthenticatedError, UnavailableError)
"""Errors that the next program would have too."""


@dataclass(frozen=True, slots=True)
class SignedContent:
    """A manifest with its content, and the message that has both."""

    manifest: Manifest
    content: bytes
    message: manifest_pb2.SignedVariant


def program_of(stored: StoredProgram) -> SignedContent:
    """The signed program of a bundle; nothing is verified but digests of files.

    Raises:
        MalformedMessageError: it is none.
    """
    return _signed(stored.signed())


class EntryKind(NamedTuple):
    """A kind of entry that clients share: its name, its own tags, the parts of its digest."""

    name: str
    tags: tuple[str, ...]
    parts_of: Callable[[bytes], Mapping[str, str]]


TRACE = EntryKind("trace", (), lambda entry: traces.parted(entry)[0].parts)
PACKAGE = EntryKind("package", (PACKAGE_TAG,), lambda entry: packages.parted(entry)[0].parts)


@dataclass(frozen=True, slots=True)
class SharedContent:
    """A signed trace or package of a program."""

    kind: EntryKind
    signed: SignedContent

    @property
    def name(self) -> str:
        """Its kind and digest, for messages."""
        return f"{self.kind.name} {self.signed.manifest.key.hex()[:16]}"


def shared_contents(stored: StoredProgram) -> list[SharedContent]:
    """The signed traces and packages of a program; nothing is verified but digests of files."""
    return [
        *(SharedContent(TRACE, _signed(content)) for content in stored.traces()),
        *(SharedContent(PACKAGE, _signed(content)) for content in stored.packages()),
    ]


def check_origin(shared: SharedContent, program_key: bytes, keyring: Keyring) -> Mapping[str, str]:
    """The parts of the digest of another farm's entry, verified by the keys that this user trusts.

    Its validity limits how long clients use it, not when it is imported.

    Raises:
        IntegrityError: no trusted key for traces signed it, or it was changed.
        MalformedMessageError: it is not an entry of its kind for this program and its digest.
    """
    manifest, content = shared.signed.manifest, shared.signed.content
    address = CacheAddress(manifest.namespace, Space.TRACES, manifest.key)
    check_manifest(manifest, address, keyring, min(time.time(), manifest.not_after_s))
    check_content(manifest, content)
    try:
        found = pb.Trace.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are not a trace") from error
    if found.program_key != program_key or len(program_key) != DIGEST_BYTES:
        raise MalformedMessageError(
            f"{shared.name} names program {found.program_key.hex()[:16]};"
            f" expected {program_key.hex()[:16]}"
        )
    parts = shared.kind.parts_of(found.entry)
    if trace_digest(parts) != manifest.key or not set(shared.kind.tags) <= set(manifest.tags):
        raise MalformedMessageError(
            f"{shared.name} does not have the digest or the tags of a {shared.kind.name}"
        )
    return parts


def tuning_of(content: bytes) -> SignedTuning:
    """A tuning record of a bundle; its signature is not verified.

    Raises:
        IntegrityError: its content is not the one that its manifest names.
        MalformedMessageError: it is none.
    """
    found = _signed(content)
    return stated_tuning(found.manifest, found.content)


@dataclass(slots=True)
class TuningImport:
    """Adds the tuning records of programs one by one; none that is refused ends an import.

    Records of other devices than `devices` are left out, if any are named. `left_out` gets the
    reasons.
    """

    add: Callable[[SignedTuning], None]
    devices: frozenset[str]
    left_out: list[str]

    def run(self, stored: StoredProgram) -> int:
        """Adds the records of a program; returns how many were added.

        What is behind a file that was changed is left out, too.

        Raises:
            PermissionDeniedError, UnauthenticatedError, UnavailableError: the next one would fail.
        """
        added = others = 0
        try:
            for content in stored.tuning():
                is_added = self._one(stored, content)
                added += is_added is True
                others += is_added is None
        except ENDS_IMPORT:
            raise
        except KernelfarmError as error:
            self.left_out.append(f"tuning records of {stored.target}: {error.reason}: {error}")
        if others:
            self.left_out.append(f"{others} tuning records of {stored.target}: of other devices")
        return added

    def _one(self, stored: StoredProgram, content: bytes) -> bool | None:
        """Whether a record was added; None if it is of another device."""
        try:
            found = tuning_of(content)
            if self.devices and found.record.subject.device not in self.devices:
                return None
            self.add(found)
        except ENDS_IMPORT:
            raise
        except KernelfarmError as error:
            self.left_out.append(f"tuning record of {stored.target}: {error.reason}: {error}")
            return False
        return True


def note_unread(stored: StoredProgram, left_out: list[str]) -> None:
    """Notes that the tuning records of a refused program were left out, if it has any."""
    count = stored.tuning_count
    if count:
        left_out.append(f"{count} tuning records of {stored.target}: their program was refused")


def _signed(content: bytes) -> SignedContent:
    try:
        message = manifest_pb2.SignedVariant.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(
            f"{len(content)} bytes of the bundle that are no kernelfarm.v1.SignedVariant"
        ) from error
    return SignedContent(manifest_from_proto(message.manifest), message.content, message)
