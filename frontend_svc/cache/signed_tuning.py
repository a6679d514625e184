"""Tuning records that leave a farm: the reports of a namespace, signed like a program.

A record is in the key space of programs, because frontends sign it. Its key is a digest of the
subject, of a kind of its own, so no program has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from frontend_svc.cache.tenant_caches import TenantCache
from kernelfarm.cache import SigningPolicy
from kernelfarm.signing import Manifest, Space, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.tuning import TuningSubject
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_to_proto
from kernelfarm.wire.tuning import tuning_record_to_bytes


@dataclass(frozen=True, slots=True)
class TuningSigner:
    """Signs records with a frontend's key for programs, for as long as it signs programs."""

    signing: SigningPolicy

    async def record(
        self, tenant_cache: TenantCache, subject: TuningSubject
    ) -> manifest_pb2.SignedVariant | None:
        """The signed record of a subject in a tenant's namespace; None without reports.

        Raises:
            UnavailableError: the store does not answer.
        """
        # Before the reports are read: what is invalidated in between makes the record stale.
        epoch = await tenant_cache.cache.epochs.current()
        found = await tenant_cache.tuning.read(subject)
        if found is None:
            return None
        content = tuning_record_to_bytes(found)
        manifest = self.signing.signed(
            Manifest(
                namespace=tenant_cache.namespace,
                space=Space.PROGRAMS,
                key=subject.record_digest,
                variant_id=variant_id(()),
                guard=(),
                tags=tenant_cache.tags,
                epoch=epoch.number,
                incarnation=epoch.incarnation,
                content=blob_ref(content),
                blobs=(),
                cost_ms=0.0,
                not_after_s=0,
            )
        )
        return manifest_pb2.SignedVariant(manifest=manifest_to_proto(manifest), content=content)
