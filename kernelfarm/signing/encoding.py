"""The bytes that are signed: the canonical encoding of a manifest.

    bytes = "kernelfarm-manifest-1\\n" field*
    field = LENGTH ":" BYTES ","          every list is preceded by its count as a field

The fields have a fixed order and state their length, so that two different manifests never have
equal bytes. The serialization of protobuf is not used, because it is not canonical.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kernelfarm.ir.guards import Guard

if TYPE_CHECKING:
    from kernelfarm.signing.manifest import BlobRef, Manifest

DOMAIN = b"kernelfarm-manifest-1\n"


def canonical_bytes(manifest: Manifest) -> bytes:
    """The encoding of all fields of a manifest except its signature."""
    fields = [
        manifest.namespace.encode(),
        manifest.space.value.encode(),
        manifest.key,
        manifest.variant_id,
        encode_guard(manifest.guard),
        _number(len(manifest.tags)),
        *(tag.encode() for tag in manifest.tags),
        _number(manifest.epoch),
        manifest.incarnation.encode(),
        *_blob(manifest.content),
        _number(len(manifest.blobs)),
        *(part for blob in manifest.blobs for part in _blob(blob)),
        float(manifest.cost_ms).hex().encode(),
        _number(manifest.not_after_s),
        manifest.key_id.encode(),
    ]
    return DOMAIN + b"".join(map(_field, fields))


def variant_id(guard: Guard) -> bytes:
    """The name of a variant within its entry: the SHA-256 (32 bytes) of its encoded guard."""
    return hashlib.sha256(b"kernelfarm-variant-1\n" + encode_guard(guard)).digest()


def encode_guard(guard: Guard) -> bytes:
    """The encoding of a guard; operands are marked as number (`i`) or word (`t`)."""
    fields = [_number(len(guard))]
    for atom in guard:
        where = atom.where if isinstance(atom.where, tuple) else (atom.where,)
        kind = "i" if isinstance(atom.operand, int) else "t"
        fields += [atom.subject.value.encode(), _number(len(where))]
        fields += [str(part).encode() for part in where]
        fields += [atom.op.value.encode(), f"{kind}{atom.operand}".encode()]
    return b"".join(map(_field, fields))


def _blob(blob: BlobRef) -> tuple[bytes, bytes]:
    return blob.sha256, _number(blob.size_bytes)


def _number(value: int) -> bytes:
    return str(value).encode()


def _field(content: bytes) -> bytes:
    return b"%d:%b," % (len(content), content)
