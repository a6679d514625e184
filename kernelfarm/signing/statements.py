"""Ed25519 signatures of statements that are no manifests, such as coverage certificates.

    signed bytes = DOMAIN "\\n" content

The domain differs from that of manifests, so that no signature of one can pass for the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.errors import ForgedManifestError, UntrustedKeyError
from kernelfarm.signing.keys import Keyring, Signer
from kernelfarm.signing.manifest import Space


@dataclass(frozen=True, slots=True)
class StatementSignature:
    """The id of the key that signed a statement, and its signature (64 bytes)."""

    key_id: str
    signature: bytes


def sign_statement(signer: Signer, domain: str, content: bytes) -> StatementSignature:
    """A signer's signature of a statement."""
    signature = signer.sign_bytes(_signed_bytes(domain, content))
    return StatementSignature(signer.trusted.key_id, signature)


def check_statement(
    stated: StatementSignature, domain: str, content: bytes, keyring: Keyring, now_s: float
) -> None:
    """Verifies that a trusted key for traces, which warming jobs hold, signed a statement.

    Raises:
        UntrustedKeyError: another key signed it, or the key has expired.
        ForgedManifestError: the signature is not that key's signature of this content.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 -- see keys._loaded
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    trusted = keyring.find(stated.key_id)
    if trusted is None or trusted.space is not Space.TRACES:
        raise UntrustedKeyError(
            f"the {domain} is signed by key {stated.key_id[:64]}; expected a trusted key for traces"
        )
    if trusted.not_after_s is not None and trusted.not_after_s < now_s:
        raise UntrustedKeyError(f"the {domain} is signed by key {stated.key_id}, which has expired")
    try:
        Ed25519PublicKey.from_public_bytes(trusted.public_key).verify(
            stated.signature, _signed_bytes(domain, content)
        )
    except InvalidSignature as error:
        raise ForgedManifestError(
            f"the {domain} was changed after key {stated.key_id} signed it"
        ) from error


def _signed_bytes(domain: str, content: bytes) -> bytes:
    return f"kernelfarm-{domain}-1\n".encode() + content
