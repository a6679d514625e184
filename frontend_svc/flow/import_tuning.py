"""Imports tuning records that another farm's frontend signed.

The reports go into the namespace of the caller, whatever namespace the record is from. They are
added to those of this farm, of which none is replaced: what was measured here counts.
"""

from __future__ import annotations

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.flow.import_trust import ImportTrust
from kernelfarm.cache import StoredVariant
from kernelfarm.errors import MalformedMessageError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.signing import Space
from kernelfarm.wire.tuning import MAX_RECORD_BYTES, tuning_record_from_bytes


class TuningImporter:
    """Imports records into the namespaces of one farm."""

    def __init__(self, trust: ImportTrust) -> None:
        self._trust = trust

    async def run(self, tenant_cache: TenantCache, sent: StoredVariant) -> int:
        """Imports one record into a tenant's namespace; returns how many reports were added.

        Raises:
            MalformedMessageError: it is no tuning record, or not that of its manifest.
            IntegrityError: no trusted key signed it, it was changed, or it is too old.
            CallerError: this farm signs nothing.
            UnavailableError: the store does not answer.
        """
        if len(sent.content) > MAX_RECORD_BYTES:  # before any work on it
            raise MalformedMessageError(
                f"a tuning record of {len(sent.content)} bytes; expected at most {MAX_RECORD_BYTES}"
            )
        self._trust.check(sent, "tuning record")
        record = tuning_record_from_bytes(sent.content)
        manifest = sent.manifest
        expected = (Space.PROGRAMS, record.subject.record_digest)
        if (manifest.space, manifest.key) != expected:
            raise MalformedMessageError(
                f"a tuning record in a manifest of {manifest.space.name.lower()}"
                f" {manifest.key.hex()[:16]}; expected programs {expected[1].hex()[:16]}"
            )
        added = await tenant_cache.tuning.adopt(record)
        if added:
            get_logger().info(
                "tuning_imported",
                key=manifest.key.hex(),
                origin=manifest.namespace,
                signer=manifest.key_id,
                reports=added,
            )
        return added
