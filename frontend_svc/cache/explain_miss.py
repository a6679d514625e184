"""Why an entry is not found: a part of its key, a guard, or an epoch, beside the nearest one."""

from __future__ import annotations

from dataclasses import dataclass

from frontend_svc.cache.tiered_programs import Caller, fitting_variant
from kernelfarm.cache import Found, KernelCache
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.records import FORGOTTEN
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
    "hole": api.MISS_REASON_HOLE,
    "disbelieved": api.MISS_REASON_DISBELIEVED,
}
"""On the wire: the reasons of explanations, and of look-ups that find nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What was asked for and what the nearest entry has, for one part."""

    part: str
    asked: str
    nearest: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """`reason` is `found`, `guard`, `key`, or a look-up's (`kernelfarm.cache.Found.reason`)."""

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
                api.Difference(part=d.part, asked=d.asked, nearest=d.nearest)
                for d in self.differences
            ],
        )


async def explain_miss(
    cache: KernelCache, index: KeyIndex, key: bytes, parts: dict[str, str] | None, caller: Caller
) -> Explanation:
    """What a look-up of a key meets; `parts` are the key's, None if only the key is known.

    Raises:
        UnavailableError: the cache does not answer.
    """
    found = await cache.lookup(key, tags=caller.tags, is_counted=False)
    if fitting_variant(found.variants, caller.facts) is not None:
        return Explanation("found", key, key, ())
    if found.is_hit:
        return Explanation("guard", key, key, _guards(found, caller.facts))
    if found.reason != "absent":
        return Explanation(found.reason, key, key, (_fault(found),))
    parts = parts or await index.parts(key)
    near = None if parts is None else await index.nearest(key, parts)
    if near is None or parts is None:
        return Explanation("key", key, b"", ())
    theirs = await index.parts(near) or {}
    differences = tuple(
        Difference(part, parts.get(part, ""), theirs.get(part, ""))
        for part in sorted(parts.keys() | theirs.keys())
        if parts.get(part) != theirs.get(part)
    )
    return Explanation("key", key, near, differences)


def _guards(found: Found, facts: CallerFacts) -> tuple[Difference, ...]:
    """The first condition of each variant that the caller's facts do not meet."""
    differences = []
    for variant in found.variants:
        atom = first_failing(variant.manifest.guard, facts)
        if atom is not None:
            seen = fact_of(atom, facts)
            asked = "not told" if seen is None else str(seen)
            differences.append(Difference("guard", asked, str(atom)))
    return tuple(differences)


def _fault(found: Found) -> Difference:
    """What makes the entry's variants dead."""
    texts = {
        "epoch": ("tag", "as of now", _invalidated(found.detail)),
        "incarnation": ("incarnation", found.incarnation, "made before the epoch table was lost"),
        "toolchain": ("toolchain", "advertised ones", f"{found.detail} is advertised by nobody"),
        "expired": ("age", "as of now", f"good until {found.detail} (seconds since 1970)"),
        "hole": ("blob", "all blobs", f"{found.detail} was evicted"),
        "disbelieved": ("signature", "a statement that is believed", found.detail),
    }
    return Difference(*texts[found.reason])


def _invalidated(tag: str) -> str:
    if tag == FORGOTTEN:
        return "older than what is known of invalidations tag by tag"
    return f"{tag} was invalidated after it was made"
