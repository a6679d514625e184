"""Signed statements about cache entries: what they say, how they are signed, and who is believed.

Pure but for the key files: nothing here knows Redis, gRPC or torch, so that a client checks what
it gets with the same code as the farm.
"""

from kernelfarm.signing.encoding import variant_id
from kernelfarm.signing.keys import Keyring, Signer, TrustedKey, new_signer
from kernelfarm.signing.manifest import BlobRef, Manifest, Space
from kernelfarm.signing.verify import CacheAddress, check_blob, check_content, check_manifest

__all__ = [
    "BlobRef",
    "CacheAddress",
    "Keyring",
    "Manifest",
    "Signer",
    "Space",
    "TrustedKey",
    "check_blob",
    "check_content",
    "check_manifest",
    "new_signer",
    "variant_id",
]
