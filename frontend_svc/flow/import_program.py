"""Imports programs that another farm's frontend signed.

A program of another farm is of no use as it is: its manifest names that farm's namespace, epoch and
incarnation. So the importing frontend verifies it by keys that it trusts for imports, and signs it
again as its own. Nothing is stored that no such key signed: a content must be a blob of the signed
manifest.

Epochs of two farms cannot be compared. A program that depends on a tag that this farm ever
invalidated is therefore refused, unless the administrator says that it was made after that.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.flow.admission import AdmissionControl
from frontend_svc.flow.import_trust import ImportTrust
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, PublishStatus, StoredVariant, UnsignedVariant
from kernelfarm.cache.blobs import MAX_BLOB_BYTES
from kernelfarm.cache.imports import missing_blobs, other_toolchains
from kernelfarm.errors import CallerError, ToolchainMismatchError, UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.signing import Manifest, Space
from kernelfarm.signing.tags import check_tag

_MAX_BLOBS = 65_536
_MAX_PROGRAM_BYTES = 4 << 30
_MAX_TAGS = 8_192
_TENANT = "tenant:"
_TOOLCHAIN = "toolchain:"


@dataclass(frozen=True, slots=True)
class ProgramImport:
    """A program to import, with some of its blobs."""

    program: StoredVariant
    contents: Sequence[bytes]
    accepts_invalidated: bool = False


@dataclass(frozen=True, slots=True)
class ImportedProgram:
    """The outcome: blobs that are missing, or whether the program was stored or was there."""

    missing: tuple[bytes, ...] = ()
    is_stored: bool = False


class ProgramImporter:
    """Imports programs into the namespaces of one farm."""

    def __init__(
        self, settings: FrontendSettings, admission: AdmissionControl, trust: ImportTrust
    ) -> None:
        self._trust = trust
        self._lease_ttl_s = settings.lease_ttl_s
        self._admission = admission

    async def run(self, tenant_cache: TenantCache, sent: ProgramImport) -> ImportedProgram:
        """Imports one program into a tenant's namespace, or says which of its blobs are missing.

        Raises:
            CallerError: it is malformed or too large, or depends on what this farm invalidated.
            IntegrityError: no trusted key signed it, or it was changed.
            ToolchainMismatchError: this farm runs other versions of the toolchains that made it.
            UnavailableError: the program is being compiled, or the store does not answer.
        """
        cache, manifest = tenant_cache.cache, sent.program.manifest
        self._check(sent.program)
        await self._admission.check_quota(tenant_cache)
        await _check_toolchains(cache, manifest)
        if not sent.accepts_invalidated:
            await _check_invalidations(cache, manifest)
        await cache.put_blobs(_named(manifest, sent.contents))
        missing = await missing_blobs(cache, [blob.sha256 for blob in manifest.blobs])
        if missing:
            return ImportedProgram(tuple(missing))
        return await self._publish(tenant_cache, sent.program)

    def _check(self, program: StoredVariant) -> None:
        manifest = program.manifest
        if manifest.space is not Space.PROGRAMS:
            raise CallerError(
                f"a manifest of {manifest.space.name.lower()}; expected one of programs"
            )
        self._trust.check(program, "program")
        _check_sizes(manifest)

    async def _publish(self, tenant_cache: TenantCache, program: StoredVariant) -> ImportedProgram:
        cache, manifest = tenant_cache.cache, program.manifest
        found = await cache.lookup(manifest.key, is_counted=False)
        if any(variant.manifest.guard == manifest.guard for variant in found.variants):
            return ImportedProgram()
        # Before it is published: clients must be notified if the model is invalidated.
        await tenant_cache.programs.models.record(manifest.tags)
        owner = uuid.uuid4().hex
        lease = await cache.acquire(manifest.key, owner, self._lease_ttl_s, seen=found.stamp)
        if lease is None:
            raise _busy(manifest)
        own = (tag for tag in manifest.tags if not tag.startswith(_TENANT))
        variant = UnsignedVariant(
            program.content,
            manifest.blobs,
            manifest.guard,
            (*own, *tenant_cache.tags),
            manifest.cost_ms,
        )
        try:
            status = await cache.publish(lease, [variant])
        finally:
            await cache.release(lease)
        if status not in (PublishStatus.OK, PublishStatus.NONDET):
            raise _busy(manifest)
        is_stored = status is PublishStatus.OK
        if is_stored:
            await cache.count("imported")
            get_logger().info(
                "program_imported",
                key=manifest.key.hex(),
                origin=manifest.namespace,
                signer=manifest.key_id,
            )
        return ImportedProgram(is_stored=is_stored)


def _check_sizes(manifest: Manifest) -> None:
    total = sum(blob.size_bytes for blob in manifest.blobs)
    largest = max((blob.size_bytes for blob in manifest.blobs), default=0)
    if len(manifest.blobs) > _MAX_BLOBS or total > _MAX_PROGRAM_BYTES or largest > MAX_BLOB_BYTES:
        raise CallerError(
            f"a program of {len(manifest.blobs)} blobs with {total} bytes, the largest {largest};"
            f" expected at most {_MAX_BLOBS} blobs, {_MAX_PROGRAM_BYTES} bytes and"
            f" {MAX_BLOB_BYTES} for one"
        )
    if len(manifest.tags) > _MAX_TAGS:
        raise CallerError(f"a program with {len(manifest.tags)} tags; expected at most {_MAX_TAGS}")
    for tag in manifest.tags:
        check_tag(tag)


def _named(manifest: Manifest, contents: Sequence[bytes]) -> dict[bytes, bytes]:
    """The contents by SHA-256.

    Raises:
        CallerError: the manifest does not name one of them.
    """
    sizes = {blob.sha256: blob.size_bytes for blob in manifest.blobs}
    found = {hashlib.sha256(content).digest(): content for content in contents}
    for sha256, content in found.items():
        if sizes.get(sha256) != len(content):
            raise CallerError(
                f"a content of {len(content)} bytes with digest {sha256.hex()}, which is no blob of"
                f" program {manifest.key.hex()[:16]}; expected one that its manifest names"
            )
    return found


async def _check_toolchains(cache: KernelCache, manifest: Manifest) -> None:
    tags = (tag for tag in manifest.tags if tag.startswith(_TOOLCHAIN))
    names = [tag.removeprefix(_TOOLCHAIN) for tag in tags]
    other = await other_toolchains(cache, names)
    if other:
        seen = ", ".join(f"{name[:40]} (here: {here[:40]})" for name, here in other.items())
        raise ToolchainMismatchError(
            f"program {manifest.key.hex()[:16]} was made by {seen}; this farm would not find it:"
            " export from a farm of the same version, or warm this farm"
        )


async def _check_invalidations(cache: KernelCache, manifest: Manifest) -> None:
    known = await cache.epochs.current()
    is_own = manifest.incarnation == known.incarnation
    after = manifest.epoch if is_own else 0
    invalidated = await cache.epochs.invalidated_tags(manifest.tags, after)
    if invalidated:
        raise CallerError(
            f"program {manifest.key.hex()[:16]} depends on {', '.join(invalidated)[:200]}, which"
            " this farm invalidated; import it with --accept-invalidated if it was made after the"
            " mistake was corrected"
        )


def _busy(manifest: Manifest) -> UnavailableError:
    return UnavailableError(
        f"program {manifest.key.hex()[:16]} is being compiled or was just invalidated; try again"
    )
