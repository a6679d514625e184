"""Keys for traces; a key signs only for its own key space."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.errors import CallerError, ForgedManifestError, UntrustedKeyError
from kernelfarm.signing import (
    CacheAddress,
    Keyring,
    Manifest,
    Signer,
    Space,
    check_manifest,
    new_signer,
    variant_id,
)
from kernelfarm.signing.encoding import canonical_bytes
from kernelfarm.signing.key_files import (
    KERNEL_KEY,
    PROGRAM_KEY,
    PUBLIC_KEYS,
    TRACE_KEY,
    make_keys,
    read_keyring,
    read_signer,
)
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.wire.manifest import manifest_from_bytes, manifest_to_bytes

NOW_S = 1_800_000_000
DIGEST = bytes(range(32))


def statement(space: Space) -> Manifest:
    return Manifest(
        namespace="farm/acme",
        space=space,
        key=DIGEST,
        variant_id=variant_id(()),
        guard=(),
        tags=("model:m@1", "pass:capture", "tenant:acme"),
        epoch=3,
        incarnation="ab" * 16,
        content=blob_ref(b"a trace"),
        blobs=(),
        cost_ms=0.0,
        not_after_s=NOW_S + 60,
    )


def test_the_manifest_of_a_trace_equals_its_golden_vector_and_is_read_back() -> None:
    signed = Signer(bytes(range(32)), Space.TRACES).sign(statement(Space.TRACES))
    golden = "a6e2df5990ad1e23bbc572949d7aca362248dbe5d9172bf8a6262d8e0afda00d"
    assert hashlib.sha256(canonical_bytes(signed)).hexdigest() == golden
    assert manifest_from_bytes(manifest_to_bytes(signed)) == signed


@pytest.mark.parametrize(("own", "other"), list(itertools.permutations(Space, 2)))
def test_a_key_signs_for_its_own_key_space_only(own: Space, other: Space) -> None:
    signer = new_signer(own)
    keyring = Keyring([signer.trusted])
    check_manifest(
        signer.sign(statement(own)), CacheAddress("farm/acme", own, DIGEST), keyring, NOW_S
    )
    address = CacheAddress("farm/acme", other, DIGEST)
    with pytest.raises(UntrustedKeyError):
        check_manifest(signer.sign(statement(other)), address, keyring, NOW_S)
    # A signature for one key space is not valid for another, even if the key is trusted for both.
    moved = Signer(signer.private_key, other)
    signature = signer.sign(statement(own)).signature
    stolen = replace(statement(other), key_id=moved.trusted.key_id, signature=signature)
    with pytest.raises(ForgedManifestError):
        check_manifest(stolen, address, Keyring([moved.trusted]), NOW_S)


def test_a_folder_without_a_key_for_traces_gets_one_beside_its_own(tmp_path: Path) -> None:
    made = make_keys(tmp_path)
    assert [key.space for key in made.keys].count(Space.TRACES) == 1
    before = {name: (tmp_path / name).read_bytes() for name in (PROGRAM_KEY, KERNEL_KEY)}
    # As a folder from before there were traces.
    (tmp_path / TRACE_KEY).unlink()
    public = tmp_path / PUBLIC_KEYS
    others = [key for key in json.loads(public.read_text()) if key["space"] != "traces"]
    public.write_text(json.dumps(others))
    again = make_keys(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(again.keys) == 3 and read_keyring(public).keys == again.keys
    signer = read_signer(tmp_path / TRACE_KEY, Space.TRACES)
    assert again.find(signer.trusted.key_id) == signer.trusted
    assert make_keys(tmp_path).keys == again.keys


def test_a_folder_that_lacks_another_key_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path)
    (tmp_path / KERNEL_KEY).unlink()
    with pytest.raises(CallerError, match=r"has only .*traces.key, public.json"):
        make_keys(tmp_path)


def test_a_key_for_programs_publishes_no_traces(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with pytest.raises(CallerError, match="signs programs; expected a key for TRACES"):
        read_signer(tmp_path / PROGRAM_KEY, Space.TRACES)
