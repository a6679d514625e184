"""Imports a bundle into the disk tier, so that clients start without a farm.

The signatures stay: clients verify them at each start by the keys that they pin. They look into the
tier for the farm that the settings name (endpoint and namespace), and take that the farm has
invalidated nothing since the programs were made until it answers for the first time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kernelfarm.client.bundle.contents import (
    PACKAGE,
    SharedContent,
    SignedContent,
    TuningImport,
    check_origin,
    note_unread,
    program_of,
    shared_contents,
)
from kernelfarm.client.bundle.layout import StoredProgram
from kernelfarm.client.disk.files import read_sealed, write_sealed
from kernelfarm.client.disk.folder import checked_tier_folder
from kernelfarm.client.disk.tier import Confirmation, DiskTier
from kernelfarm.client.farm.access import STATE_SUFFIX, farm_file
from kernelfarm.client.farm.checked_program import ExpectedProgram, checked_content
from kernelfarm.client.farm.checked_tuning import SignedTuning, check_tuning
from kernelfarm.client.farm.compiled_program import CompiledProgram, decode_program
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError, KernelfarmError, MalformedMessageError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space, check_blob, check_manifest
from kernelfarm.signing.key_files import read_keyring


@dataclass(slots=True)
class DiskReport:
    """What an import did; `valid_until_s` (seconds since 1970) is when the first entry expires.

    `left_out` are tuning records that clients would not use, with the reason.
    """

    programs: int = 0
    traces: int = 0
    packages: int = 0
    tuning: int = 0
    valid_until_s: int | None = None
    refused: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class DiskImporter:
    """Imports programs into the tier of the settings, with the keys that they pin.

    Tuning records are those of `devices`, or all of them.

    Raises:
        CallerError: no keys are pinned, or the tier is off or not private.
    """

    def __init__(self, settings: ClientSettings, devices: frozenset[str] = frozenset()) -> None:
        root = checked_tier_folder(settings)
        if root is None:
            raise CallerError("the disk tier is off: set KERNELFARM_DISK_CACHE_BYTES above 0")
        if settings.trusted_keys_file is None:
            raise CallerError(
                "no keys are pinned: set KERNELFARM_TRUSTED_KEYS_FILE to the public.json of the"
                " farm that made the bundle; the clients need it too"
            )
        self._settings = settings
        self._devices = devices
        self._keyring: Keyring = read_keyring(settings.trusted_keys_file)
        self._tier = DiskTier(root, settings.disk_cache_bytes)
        self._state: Path = farm_file(root, settings, STATE_SUFFIX)
        self._incarnation = ""
        self._first_epoch: int | None = None

    def add(self, stored: StoredProgram, report: DiskReport) -> None:
        """Verifies and stores one program with what belongs to it; a refusal is reported.

        Programs do not need their tuning records, so a record that is refused is left out alone.
        """
        try:
            signed = program_of(stored)
            compiled = self._checked(signed)
            self._note(signed.manifest)
            contents = _needed(stored, compiled)
            shared = shared_contents(stored)
            entries = [self._checked_entry(found, compiled.key) for found in shared]
        except KernelfarmError as error:
            report.refused.append(f"{stored.target}: {error.reason}: {error}")
            note_unread(stored, report.left_out)
            return
        is_stored = self._put(signed, contents)
        for entry in entries:
            is_stored &= self._put(entry, {entry.manifest.content.sha256: entry.content})
        if not is_stored:
            report.refused.append(
                f"{stored.target}: {self._tier.root} cannot store it: the disk is full, or the tier"
                " has its largest size (KERNELFARM_DISK_CACHE_BYTES)"
            )
            note_unread(stored, report.left_out)
            return
        report.programs += 1
        packages = sum(found.kind is PACKAGE for found in shared)
        report.packages += packages
        report.traces += len(shared) - packages
        ends_s = [entry.manifest.not_after_s for entry in (signed, *entries)]
        report.valid_until_s = min([*ends_s, report.valid_until_s or ends_s[0]])
        self._add_tuning(stored, report)

    def _add_tuning(self, stored: StoredProgram, report: DiskReport) -> None:
        def add(found: SignedTuning) -> None:
            check_tuning(found, self._settings.namespaces, self._check)
            self._note(found.manifest)
            self._check_newest(found)
            sha256 = found.manifest.content.sha256
            if not self._put(found, {sha256: found.content}):
                raise CallerError(f"{found.title}: {self._tier.root} cannot store it")

        report.tuning += TuningImport(add, self._devices, report.left_out).run(stored)

    def _check_newest(self, found: SignedTuning) -> None:
        """Checks that no record of the same subject that ends later is on the disk.

        Raises:
            CallerError: there is one.
        """
        manifest = found.manifest
        known = self._tier.entries(manifest.incarnation, [manifest.namespace], manifest.key)
        ends_s = max((entry.manifest.not_after_s for entry in known), default=0)
        if ends_s > manifest.not_after_s:
            raise CallerError(
                f"{found.title} until {manifest.not_after_s}: this disk has one until {ends_s},"
                " which is newer; expected an export that was made later"
            )

    def finish(self) -> None:
        """Notes for the clients which incarnation of the farm's epoch table the programs are of.

        Raises:
            CallerError: the file cannot be written.
        """
        if self._first_epoch is None or self._known() is not None:
            return
        epoch = self._first_epoch  # a client that meets the farm receives all later invalidations
        state = InvalidationState(self._incarnation, epoch, epoch, time.time())
        try:
            write_sealed(self._state, state.to_json().encode())
        except OSError as error:
            raise CallerError(f"cannot write {self._state}: {error}") from error

    def _checked(self, signed: SignedContent) -> CompiledProgram:
        key = signed.manifest.key
        expected = ExpectedProgram(self._settings.namespaces, key, target="")
        message = checked_content(signed.manifest, signed.content, expected, self._check)
        return decode_program(message, signed.manifest, signed.content)

    def _checked_entry(self, shared: SharedContent, program_key: bytes) -> SignedContent:
        manifest = shared.signed.manifest
        namespaces = self._settings.namespaces
        namespace = manifest.namespace if manifest.namespace in namespaces else namespaces[0]
        self._check(manifest, CacheAddress(namespace, Space.TRACES, manifest.key))
        check_origin(shared, program_key, self._keyring)
        self._note(manifest)
        return shared.signed

    def _check(self, manifest: Manifest, address: CacheAddress) -> None:
        check_manifest(manifest, address, self._keyring, time.time())

    def _note(self, manifest: Manifest) -> None:
        """Checks that clients will find the manifest: all are of one incarnation.

        Raises:
            CallerError: it is of another one.
        """
        known = self._known()
        expected = known.incarnation if known is not None else self._incarnation
        if expected and manifest.incarnation != expected:
            raise CallerError(
                f"it is of incarnation {manifest.incarnation[:8]} of the farm's epoch table;"
                f" clients of {self._settings.endpoint} on this machine know {expected[:8]}, and"
                " would not find it: use another KERNELFARM_DISK_CACHE_DIR, or export from this"
                " farm"
            )
        self._incarnation = manifest.incarnation
        epochs = [manifest.epoch, *([] if self._first_epoch is None else [self._first_epoch])]
        self._first_epoch = min(epochs)

    def _known(self) -> InvalidationState | None:
        try:
            return InvalidationState.from_json(read_sealed(self._state).decode())
        except (OSError, ValueError, MalformedMessageError):
            return None

    def _put(self, signed: SignedContent | SignedTuning, contents: dict[bytes, bytes]) -> bool:
        """Stores an entry; False if the tier does not have it afterwards."""
        manifest = signed.manifest
        # The farm confirmed nothing after the epoch in which the program was made.
        self._tier.put(manifest, Confirmation(manifest.epoch), contents)
        return bool(self._tier.entries(manifest.incarnation, [manifest.namespace], manifest.key))


def _needed(stored: StoredProgram, compiled: CompiledProgram) -> dict[bytes, bytes]:
    """What a client loads: the program and its binaries, without the texts of stages."""
    sizes = {blob.sha256: blob for blob in compiled.manifest.blobs}
    contents = {compiled.manifest.content.sha256: compiled.content}
    for sha256 in _binaries(compiled):
        content = stored.blob(sha256)
        if sha256 in sizes:
            check_blob(sizes[sha256], content)
        contents[sha256] = content
    return contents


def _binaries(compiled: CompiledProgram) -> Iterable[bytes]:
    return dict.fromkeys(a.binary.sha256 for variants in compiled.kernels for a in variants)
