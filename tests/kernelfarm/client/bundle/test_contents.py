"""What imports check of the traces and packages of a bundle: signature, kind, digest, program."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from kernelfarm.client.bundle.contents import (
    PACKAGE,
    TRACE,
    SharedContent,
    SignedContent,
    check_origin,
)
from kernelfarm.client.packages.header import PackageHeader, joined
from kernelfarm.client.traces.publication import CAPTURE_TAG, PACKAGE_TAG
from kernelfarm.digest import trace_digest
from kernelfarm.errors import (
    KernelfarmError,
    MalformedMessageError,
    PoisonedBlobError,
    UntrustedKeyError,
)
from kernelfarm.signing import Keyring, Manifest, Signer, Space, new_signer, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb

PARTS = {"package": "1 of capture", "target": "cpu:x86-64-v3"}
KEY = b"k" * 32


def package(signer: Signer, **changes: Any) -> SharedContent:
    """A signed package; fields of its manifest may be changed before it is signed."""
    entry = joined(PackageHeader(PARTS, {}), b"what PyTorch pickles")
    content = pb.Trace(program_key=KEY, entry=entry).SerializeToString()
    manifest = Manifest(
        namespace="default",
        space=Space.TRACES,
        key=trace_digest(PARTS),
        variant_id=variant_id(()),
        guard=(),
        tags=(CAPTURE_TAG, PACKAGE_TAG),
        epoch=0,
        incarnation="0" * 32,
        content=blob_ref(content),
        blobs=(),
        cost_ms=0.0,
        not_after_s=int(time.time()) + 60,
    )
    signed = signer.sign(replace(manifest, **changes))
    return SharedContent(PACKAGE, SignedContent(signed, content, manifest_pb2.SignedVariant()))


def test_a_package_of_a_trusted_publisher_states_the_parts_of_its_digest() -> None:
    signer = new_signer(Space.TRACES)
    assert check_origin(package(signer), KEY, Keyring((signer.trusted,))) == PARTS


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("publisher", UntrustedKeyError),
        ("content", PoisonedBlobError),
        ("program", MalformedMessageError),
        ("digest", MalformedMessageError),
        ("tag", MalformedMessageError),
        ("kind", MalformedMessageError),
    ],
)
def test_what_is_not_the_package_that_was_signed_is_refused(
    what: str, error: type[KernelfarmError]
) -> None:
    signer = new_signer(Space.TRACES)
    trusted = Keyring((signer.trusted,))
    found, key = package(signer), KEY
    match what:
        case "publisher":
            trusted = Keyring((new_signer(Space.TRACES).trusted,))
        case "content":
            changed = found.signed.content + b"\x22\x00"
            found = replace(found, signed=replace(found.signed, content=changed))
        case "program":
            key = b"o" * 32
        case "digest":
            found = package(signer, key=trace_digest({**PARTS, "target": "cpu:x86-64-v4"}))
        case "tag":  # without it, `pass:package` would not revoke the package
            found = package(signer, tags=(CAPTURE_TAG,))
        case _:  # a package among the traces, which an import signs without being asked
            found = replace(found, kind=TRACE)
    with pytest.raises(error):
        check_origin(found, key, trusted)
