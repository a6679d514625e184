"""Responses with programs: stored bytes are embedded as they are, beside fields of the look-up."""

from __future__ import annotations

from frontend_svc.cache.tiered_programs import CacheTier, SelectedVariant
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.embedded import embedded, field_tag

_SIGNED = field_tag(api.ProgramResult, "signed")
_MANIFEST = field_tag(manifest_pb2.SignedVariant, "manifest")
_CONTENT = field_tag(manifest_pb2.SignedVariant, "content")

_KEY = field_tag(api.ProgramResult, "key")

_HITS = {
    tier: api.ProgramResult(outcome=api.CACHE_OUTCOME_HIT, tier=number).SerializeToString()
    for tier, number in (
        (CacheTier.GATEWAY, api.CACHE_TIER_GATEWAY),
        (CacheTier.STORE, api.CACHE_TIER_STORE),
    )
}
"""The fields of a hit, serialized once: a gateway serves thousands a second."""


def hit_message(tag: bytes, found: SelectedVariant, *, wants_signed: bool) -> bytes:
    """A serialized message with a hit as the field with this tag."""
    return _message(tag, found, _HITS[found.tier], wants_signed=wants_signed)


def program_message(
    tag: bytes, found: SelectedVariant, result: api.ProgramResult, *, wants_signed: bool
) -> bytes:
    """A serialized message with a program as the field with this tag.

    The program has the fields of `result`, and either the signed variant or the stored fields.
    """
    return _message(tag, found, result.SerializeToString(), wants_signed=wants_signed)


def _message(tag: bytes, found: SelectedVariant, result: bytes, *, wants_signed: bool) -> bytes:
    variant = found.variant
    if not wants_signed:
        return b"".join(embedded(tag, variant.content, result))
    key = embedded(_KEY, variant.manifest.key)
    manifest = embedded(_MANIFEST, variant.manifest_bytes)
    content = embedded(_CONTENT, variant.content)
    signed = embedded(_SIGNED, *manifest, *content)
    return b"".join(embedded(tag, result, *key, *signed))
