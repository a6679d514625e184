"""Explains a miss: how the key, guard or epoch of a request differs from the nearest entry."""

from __future__ import annotations

from dataclasses import dataclass

from frontend_svc.cache.tiered_programs import Caller, fitting_variant
from kernelfarm.cache import KernelCache, LookupResult
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.records import TAGS_DISCARDED
from kernelfarm.ir.guards import CallerFacts, fact_of, first_failing
from kernelfarm.v1 import cache_service_pb2 as api

REASONS = {
    "found": api.MISS_REASON_NONE,
    "key": api.MISS_REASON_KEY,
    "absent": api.MISS_REASON_KEY,
    "guard": api.MISS_REASON_GUARD,
    "epoch": api.MISS_REASON_EPOCH,
    "incarnation": api.MISS_REASON_INCARNATION,
    "toolchain": api.MISS_REASON_TOOLCHAIN,
    "expired": api.MISS_REASON_EXPIRED,
    "missing_blob": api.MISS_REASON_MISSING_BLOB,
    "untrusted": api.MISS_REASON_UNTRUSTED,
}
"""Reasons of explanations, and of look-ups that find nothing, on the wire."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which the request and the nearest entry differ."""

    part: str
    requested: str
    nearest: str


@dataclass(frozen=True, slots=True)
class MissExplanation:
    """`reason` is `found`, `guard`, `key`, or the reason of a `kernelfarm.cache.LookupResult`."""

    reason: str
    key: bytes
    nearest_key: bytes
    differences: tuple[Difference, ...]

    def to_proto(self) -> api.ExplainMissResponse:
        """Its form on the wire."""
        return api.ExplainMissResponse(
            reason=REASONS[self.reason],
            key=self.key,
            nearest_key=self.nearest_key,
            differences=[
                api.Difference(part=d.part, requested=d.requested, nearest=d.nearest)
                for d in self.differences
            ],
        )


async def explain_miss(
    cache: KernelCache, index: KeyIndex, key: bytes, parts: dict[str, str] | None, caller: Caller
) -> MissExplanation:
    """The result of a look-up of a key; `parts` are those of the key, None if they are unknown.

    Raises:
        UnavailableError: the cache does not answer.
    """
    found = await cache.lookup(key, tags=caller.tags, is_counted=False)
    if fitting_variant(found.variants, caller.facts) is not None:
        return MissExplanation("found", key, key, ())
    if found.is_hit:
        return MissExplanation("guard", key, key, _guards(found, caller.facts))
    if found.reason != "absent":
        return MissExplanation(found.reason, key, key, (_fault(found),))
    parts = parts or await index.parts(key)
    near = None if parts is None else await index.nearest(key, parts)
    if near is None or parts is None:
        return MissExplanation("key", key, b"", ())
    theirs = await index.parts(near) or {}
    differences = tuple(
        Difference(part, parts.get(part, ""), theirs.get(part, ""))
        for part in sorted(parts.keys() | theirs.keys())
        if parts.get(part) != theirs.get(part)
    )
    return MissExplanation("key", key, near, differences)


def _guards(found: LookupResult, facts: CallerFacts) -> tuple[Difference, ...]:
    """For each variant the first condition that does not hold for the caller's facts."""
    differences = []
    for variant in found.variants:
        atom = first_failing(variant.manifest.guard, facts)
        if atom is not None:
            seen = fact_of(atom, facts)
            requested = "not stated" if seen is None else str(seen)
            differences.append(Difference("guard", requested, str(atom)))
    return tuple(differences)


def _fault(found: LookupResult) -> Difference:
    """Why the variants of the entry are not live."""
    texts = {
        "epoch": ("tag", "as of now", _invalidated(found.detail)),
        "incarnation": ("incarnation", found.incarnation, "made before the epoch table was lost"),
        "toolchain": ("toolchain", "advertised ones", f"{found.detail} is not advertised any more"),
        "expired": ("age", "as of now", f"valid until {found.detail} (seconds since 1970)"),
        "missing_blob": ("blob", "all blobs", f"{found.detail} was evicted"),
        "untrusted": ("signature", "a manifest with a trusted signature", found.detail),
    }
    return Difference(*texts[found.reason])


def _invalidated(tag: str) -> str:
    if tag == TAGS_DISCARDED:
        return "older than the recorded invalidations of single tags"
    return f"{tag} was invalidated after it was made"
