"""Imports over gRPC: what a trusted key signed is signed again; everything else is refused."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.errors import (
    CallerError,
    ExpiredManifestError,
    ForgedManifestError,
    MalformedMessageError,
    PoisonedBlobError,
    ToolchainMismatchError,
    UntrustedKeyError,
)
from kernelfarm.signing import BlobRef, Manifest, Signer, Space, new_signer, variant_id
from kernelfarm.signing.key_files import PROGRAM_KEY, read_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import cache_service_pb2 as api
from kernelfarm.v1 import compile_service_pb2, manifest_pb2
from kernelfarm.wire.manifest import manifest_from_proto, manifest_to_proto
from tests.support.calls import stub_of
from tests.support.farm import Farm

DAY_S = 24 * 3600


@dataclass
class Origin:
    """Another farm whose programs this farm trusts: it has the same key."""

    signer: Signer

    def program(
        self, blobs: Sequence[bytes] = (), tags: Sequence[str] = (), **changes: object
    ) -> tuple[Manifest, bytes]:
        content = compile_service_pb2.ProgramResult(
            key=os.urandom(32), target="cpu:x86-64-v3"
        ).SerializeToString()
        manifest = Manifest(
            namespace="another",
            space=Space.PROGRAMS,
            key=os.urandom(32),
            variant_id=variant_id(()),
            guard=(),
            tags=tuple(sorted(["tenant:theirs", *tags])),
            epoch=77,
            incarnation="cd" * 16,
            content=blob_ref(content),
            blobs=tuple(blob_ref(blob) for blob in blobs),
            cost_ms=1.0,
            not_after_s=int(time.time()) + DAY_S,
        )
        return self.signer.sign(replace(manifest, **changes)), content  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def origin(farm: Farm) -> Origin:
    return Origin(read_signer(farm.keys / PROGRAM_KEY, Space.PROGRAMS))


@pytest.fixture
def admin(farm: Farm) -> Iterator[CacheAdmin]:
    with CacheAdmin(farm.endpoint) as opened:
        yield opened


def request_of(
    manifest: Manifest, content: bytes, *contents: bytes, accepts: bool = False
) -> api.ImportProgramRequest:
    return api.ImportProgramRequest(
        program=manifest_pb2.SignedVariant(manifest=manifest_to_proto(manifest), content=content),
        contents=contents,
        accepts_invalidated=accepts,
    )


def test_a_program_is_signed_again_for_this_farm(
    farm: Farm, admin: CacheAdmin, origin: Origin
) -> None:
    manifest, content = origin.program([b"first", b"second"], ["op:aten.imported.default"])
    sent = request_of(manifest, content, b"first", b"second")
    assert admin.import_program(sent).outcome == api.IMPORT_OUTCOME_STORED
    assert admin.import_program(sent).outcome == api.IMPORT_OUTCOME_PRESENT
    slower = origin.signer.sign(replace(manifest, cost_ms=manifest.cost_ms + 1))
    again = admin.import_program(request_of(slower, content, b"first", b"second"))
    assert again.outcome == api.IMPORT_OUTCOME_PRESENT  # the cost makes no other program
    with stub_of(farm.endpoint) as stub:
        request = compile_service_pb2.LookupRequest(key=manifest.key, wants_signed=True)
        found = stub.Lookup(request).program.signed
    own = manifest_from_proto(found.manifest)
    assert found.content == content
    assert (own.namespace, own.blobs, own.tags) == (
        "default",
        manifest.blobs,
        ("op:aten.imported.default",),  # the tag of their tenant is left out
    )
    assert own.incarnation != manifest.incarnation


def test_missing_blobs_are_named_until_all_of_them_are_sent(
    admin: CacheAdmin, origin: Origin
) -> None:
    blobs = [b"one of three", b"two of three", b"three of three"]
    manifest, content = origin.program(blobs)
    missing = [hashlib.sha256(blob).digest() for blob in blobs]
    for number in range(3):
        sent = request_of(manifest, content, *blobs[max(0, number - 1) : number])
        answer = admin.import_program(sent)
        assert answer.outcome == api.IMPORT_OUTCOME_MISSING_BLOBS
        assert list(answer.missing_blobs) == missing[number:]
    last = admin.import_program(request_of(manifest, content, blobs[2]))
    assert last.outcome == api.IMPORT_OUTCOME_STORED


def test_a_content_that_the_manifest_does_not_name_is_not_stored(
    admin: CacheAdmin, origin: Origin
) -> None:
    manifest, content = origin.program([b"named"])
    with pytest.raises(CallerError, match="which is no blob of program"):
        admin.import_program(request_of(manifest, content, b"another"))
    answer = admin.import_program(request_of(manifest, content))
    assert answer.outcome == api.IMPORT_OUTCOME_MISSING_BLOBS


def test_a_program_of_an_untrusted_key_is_refused(admin: CacheAdmin) -> None:
    manifest, content = Origin(new_signer(Space.PROGRAMS)).program()
    with pytest.raises(UntrustedKeyError):
        admin.import_program(request_of(manifest, content))


def test_a_changed_program_is_refused(admin: CacheAdmin, origin: Origin) -> None:
    manifest, content = origin.program()
    with pytest.raises(PoisonedBlobError):
        admin.import_program(request_of(manifest, content + b" "))
    with pytest.raises(ForgedManifestError):
        admin.import_program(request_of(replace(manifest, tags=()), content))


def test_a_program_is_imported_for_a_while_after_its_validity(
    admin: CacheAdmin, origin: Origin
) -> None:
    manifest, content = origin.program(not_after_s=int(time.time()) - 60 * DAY_S)
    stored = admin.import_program(request_of(manifest, content))
    assert stored.outcome == api.IMPORT_OUTCOME_STORED
    manifest, content = origin.program(not_after_s=int(time.time()) - 91 * DAY_S)
    with pytest.raises(ExpiredManifestError, match="was valid until 91"):
        admin.import_program(request_of(manifest, content))


def test_a_program_of_another_toolchain_is_refused(admin: CacheAdmin, origin: Origin) -> None:
    manifest, content = origin.program(tags=["toolchain:cpu@another", "toolchain:tpu@unknown"])
    with pytest.raises(ToolchainMismatchError, match=r"cpu@another \(here: cpu@"):
        admin.import_program(request_of(manifest, content))
    manifest, content = origin.program(tags=["toolchain:tpu@unknown"])  # nothing else is known
    stored = admin.import_program(request_of(manifest, content))
    assert stored.outcome == api.IMPORT_OUTCOME_STORED


def test_what_depends_on_an_invalidated_tag_is_refused_unless_it_is_accepted(
    admin: CacheAdmin, origin: Origin
) -> None:
    tag = "model:imported@1"
    admin.invalidate([tag])
    manifest, content = origin.program(tags=[tag])
    with pytest.raises(CallerError, match="model:imported@1, which this farm invalidated"):
        admin.import_program(request_of(manifest, content))
    accepted = admin.import_program(request_of(manifest, content, accepts=True))
    assert accepted.outcome == api.IMPORT_OUTCOME_STORED


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": Space.KERNELS}, "expected one of programs"),
        ({"blobs": (BlobRef(bytes(32), 1 << 40),)}, "expected at most"),
        ({"blobs": (BlobRef(bytes(32), 1),) * 70_000}, "expected at most 65536 blobs"),
        ({"tags": ("not a tag",)}, "expected KIND:NAME"),
    ],
)
def test_what_is_no_program_or_too_large_is_refused(
    admin: CacheAdmin, origin: Origin, changes: dict[str, object], said: str
) -> None:
    manifest, content = origin.program()
    manifest = origin.signer.sign(replace(manifest, **changes))  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=said):
        admin.import_program(request_of(manifest, content))


def test_a_request_without_a_manifest_is_malformed(admin: CacheAdmin) -> None:
    with pytest.raises(MalformedMessageError, match="without its manifest"):
        admin.import_program(api.ImportProgramRequest())
