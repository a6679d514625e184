"""A variant as the fields of its entry, which `lua/entries.lua` lists."""

from __future__ import annotations

from typing import NamedTuple

from kernelfarm.cache.records import StoredVariant

# Incarnation, epoch, not after, tags, blobs: the facts by which scripts judge a variant.
_FACT_FIELDS = (b":i", b":e", b":x", b":t", b":b")


class VariantRecord(NamedTuple):
    """A variant to publish: the arguments of `publish.lua` for it.

    The manifest states the facts too; they are stored beside it because scripts cannot decode a
    manifest.
    """

    variant_id: str
    incarnation: str
    epoch: int
    not_after_s: int
    conditions: int
    tags: str
    blobs: str
    manifest: bytes
    content: bytes

    @property
    def facts(self) -> tuple[bytes, ...]:
        """The variant's id and facts as Redis returns them, see `StoredVariant.stored_facts`."""
        texts = (self.incarnation, self.epoch, self.not_after_s, self.tags, self.blobs)
        return tuple(str(text).encode() for text in (self.variant_id, *texts))


def stored_variant(fields: dict[bytes, bytes], variant_id: bytes) -> StoredVariant:
    """A variant from the fields of its entry."""
    facts = tuple([fields[variant_id + suffix] for suffix in _FACT_FIELDS])
    return StoredVariant(
        fields[variant_id + b":m"], fields[variant_id + b":c"], (variant_id, *facts)
    )
