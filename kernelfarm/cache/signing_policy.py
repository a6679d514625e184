"""Signs results for publication, and verifies stored variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kernelfarm.cache.limits import DAY_S
from kernelfarm.cache.records import Lease, StoredVariant, UnsignedVariant
from kernelfarm.cache.variant_records import VariantRecord
from kernelfarm.errors import (
    ExpiredManifestError,
    ForgedManifestError,
    InternalError,
    KernelfarmError,
    MalformedMessageError,
    ManifestMismatchError,
    PoisonedBlobError,
    UntrustedKeyError,
)
from kernelfarm.ir.guards import by_specificity
from kernelfarm.signing import (
    CacheAddress,
    Keyring,
    Manifest,
    Signer,
    check_content,
    check_manifest,
    variant_id,
)
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import check_tag, lacks_a_kernel
from kernelfarm.wire.manifest import manifest_to_bytes

_COUNTERS: dict[type[KernelfarmError], str] = {
    ForgedManifestError: "forged",
    UntrustedKeyError: "untrusted",
    ManifestMismatchError: "mismatched",
    ExpiredManifestError: "expired_manifests",
    PoisonedBlobError: "poisoned",
    MalformedMessageError: "malformed",
}


@dataclass(frozen=True, slots=True)
class SigningPolicy:
    """With which key manifests are signed, and which keys are trusted.

    Without keys, it is the policy of a farm that signs nothing. A published variant may be used for
    `validity_s` without asking the farm again. `verified_bytes` is the memory for the verified
    manifests of each key space.
    """

    signer: Signer | None = None
    keyring: Keyring | None = None
    validity_s: float = 30 * DAY_S
    clock: Callable[[], float] = time.time
    verified_bytes: int = 32 * 1024 * 1024

    def sign(
        self, address: CacheAddress, lease: Lease, variants: Sequence[UnsignedVariant]
    ) -> list[VariantRecord]:
        """Signs variants for a cache address; returns them with the most specific first.

        Raises:
            InternalError: two variants have equal guards.
            CallerError: a tag breaks the grammar.
        """
        order = by_specificity([variant.guard for variant in variants])
        made = [self._record(address, lease, variants[number]) for number in order]
        if len({variant.variant_id for variant in made}) != len(made):
            raise InternalError("two variants of one result have equal guards")
        return made

    def signed(self, manifest: Manifest) -> Manifest:
        """The manifest with a new expiry time, and with a signature if this farm signs."""
        dated = replace(manifest, not_after_s=int(self.clock() + self.validity_s))
        return self.signer.sign(dated) if self.signer else dated

    def renew(self, manifest: Manifest, content: bytes) -> VariantRecord:
        """Signs a manifest again, with a new expiry time."""
        return _signed(self.signed(manifest), content)

    def check(self, address: CacheAddress, found: StoredVariant) -> None:
        """Verifies that a stored variant is signed for the address and matches its manifest.

        Raises:
            IntegrityError: the verification failed, see `kernelfarm.signing.verify`.
            MalformedMessageError: the stored bytes are not a manifest.
        """
        check_manifest(found.manifest, address, self.keyring, self.clock())
        check_content(found.manifest, found.content)
        if found.stored_facts not in {None, _signed(found.manifest, found.content).facts}:
            raise ManifestMismatchError(
                f"the facts stored for {address.space.name.lower()} {address.key.hex()[:16]} differ"
                " from those in its signed manifest"
            )

    def expires_s(self, manifest: Manifest) -> float:
        """When a verified manifest or its signer's key expires, in seconds since 1970."""
        signer = self.keyring.find(manifest.key_id) if self.keyring else None
        if signer is None or signer.not_after_s is None:
            return manifest.not_after_s
        return min(manifest.not_after_s, signer.not_after_s)

    def is_to_renew(self, manifest: Manifest) -> bool:
        """True if less than half of its validity is left, and it may be renewed."""
        if lacks_a_kernel(manifest.tags):
            return False
        return manifest.not_after_s - self.clock() < self.validity_s / 2

    def _record(
        self, address: CacheAddress, lease: Lease, variant: UnsignedVariant
    ) -> VariantRecord:
        for tag in variant.tags:
            check_tag(tag)
        manifest = Manifest(
            namespace=address.namespace,
            space=address.space,
            key=address.key,
            variant_id=variant_id(variant.guard),
            guard=variant.guard,
            tags=tuple(sorted(set(variant.tags))),
            epoch=lease.epoch,
            incarnation=lease.incarnation,
            content=blob_ref(variant.content),
            blobs=variant.blobs,
            cost_ms=variant.cost_ms,
            not_after_s=0,
        )
        return _signed(self.signed(manifest), variant.content)


def counter_of(error: KernelfarmError) -> str:
    """The counter of a variant whose verification failed with this error."""
    return _COUNTERS.get(type(error), "malformed")


def _signed(manifest: Manifest, content: bytes) -> VariantRecord:
    return VariantRecord(
        variant_id=manifest.variant_id.hex(),
        incarnation=manifest.incarnation,
        epoch=manifest.epoch,
        not_after_s=manifest.not_after_s,
        conditions=len(manifest.guard),
        tags=" ".join(manifest.tags),
        blobs=" ".join(sorted({blob.sha256.hex() for blob in manifest.blobs})),
        manifest=manifest_to_bytes(manifest),
        content=content,
    )
