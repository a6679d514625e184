"""Signed manifests of cache entries: their content, their signatures, and their verification.

Except for the key files, this code is pure. It uses neither Redis nor gRPC nor torch, so that a
client verifies entries with the same code as the farm.
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
