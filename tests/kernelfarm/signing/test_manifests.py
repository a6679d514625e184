"""Verification of manifests: signatures, addresses, expiry, contents and guards."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.errors import (
    CallerError,
    ExpiredManifestError,
    ForgedManifestError,
    MalformedMessageError,
    ManifestMismatchError,
    PoisonedBlobError,
    UntrustedKeyError,
)
from kernelfarm.ir.guards import FactAtom
from kernelfarm.signing import (
    BlobRef,
    CacheAddress,
    Keyring,
    Manifest,
    Space,
    TrustedKey,
    check_content,
    check_manifest,
    new_signer,
)
from kernelfarm.signing.encoding import canonical_bytes
from kernelfarm.signing.key_files import read_keyring, read_signer, write_keyring, write_signer
from kernelfarm.wire.manifest import (
    key_from_proto,
    key_to_proto,
    manifest_from_bytes,
    manifest_to_bytes,
)
from tests.support.ir_strategies import atoms
from tests.support.manifests import CONTENT, GUARD, NOW_S, SIGNER, manifest

KEYRING = Keyring([SIGNER.trusted])
ADDRESS = CacheAddress("default", Space.KERNELS, b"k" * 32)


def check(
    found: Manifest, address: CacheAddress = ADDRESS, keyring: Keyring | None = KEYRING
) -> None:
    check_manifest(found, address, keyring, NOW_S)


def test_a_signed_manifest_is_valid_after_encoding_and_decoding() -> None:
    check(manifest())
    assert manifest_from_bytes(manifest_to_bytes(manifest())) == manifest()
    check_content(manifest(), CONTENT)


def test_the_encoding_equals_its_golden_vector() -> None:
    golden = "2716e27b8a0d654f5c7e0aabbce34b463505b84877099f93990afc80a9eacf9f"
    assert hashlib.sha256(canonical_bytes(manifest())).hexdigest() == golden


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"space": Space.PROGRAMS},
        {"key": b"x" * 32},
        {"variant_id": b"x" * 32},
        {"guard": ()},
        {"guard": (*GUARD[:3], replace(GUARD[3], operand="550.5"))},
        {"tags": ()},
        {"tags": ("op:aten.gelu.default,19:toolchain:cuda@1f2e",)},
        {"epoch": 8},
        {"incarnation": "ac" * 16},
        {"content": BlobRef(b"x" * 32, 11)},
        {"blobs": ()},
        {"blobs": (BlobRef(b"b" * 32, 13),)},
        {"cost_ms": 12.75},
        {"not_after_s": NOW_S + 61},
    ],
)
def test_a_manifest_that_was_changed_after_signing_is_forged(change: dict[str, object]) -> None:
    forged = replace(manifest(), **change)
    keyring = Keyring([SIGNER.trusted, TrustedKey(SIGNER.trusted.public_key, forged.space)])
    with pytest.raises(ForgedManifestError):
        check(forged, keyring=keyring)


def test_a_signature_of_another_key_with_our_key_id_is_forged() -> None:
    untrusted = new_signer(Space.KERNELS)
    forged = replace(untrusted.sign(manifest()), key_id=SIGNER.trusted.key_id)
    with pytest.raises(ForgedManifestError):
        check(forged)


def test_manifests_without_a_signature_of_a_trusted_key_are_refused() -> None:
    with pytest.raises(UntrustedKeyError, match="not signed"):
        check(replace(manifest(), key_id="", signature=b""))
    with pytest.raises(UntrustedKeyError):
        check(new_signer(Space.KERNELS).sign(manifest()))


def test_a_worker_may_not_sign_programs() -> None:
    with pytest.raises(UntrustedKeyError, match="programs"):
        check(manifest(space=Space.PROGRAMS), ADDRESS._replace(space=Space.PROGRAMS))


def test_keys_are_rotated_by_overlap() -> None:
    old, new = new_signer(Space.KERNELS), new_signer(Space.KERNELS)
    both = Keyring([replace(old.trusted, not_after_s=NOW_S + 5), new.trusted])
    for signer in (old, new):
        check(signer.sign(manifest()), keyring=both)
    with pytest.raises(UntrustedKeyError, match="expired"):
        check_manifest(old.sign(manifest()), ADDRESS, both, NOW_S + 6)


@pytest.mark.parametrize(
    "address",
    [
        ADDRESS._replace(key=b"x" * 32),
        ADDRESS._replace(namespace="other"),
        ADDRESS._replace(space=Space.PROGRAMS),
    ],
)
@pytest.mark.parametrize("keyring", [KEYRING, None])
def test_a_manifest_replayed_at_another_address_is_a_mismatch(
    address: CacheAddress, keyring: Keyring | None
) -> None:
    with pytest.raises(ManifestMismatchError):
        check(manifest(), address, keyring)


def test_a_variant_id_of_another_guard_is_a_mismatch() -> None:
    with pytest.raises(ManifestMismatchError, match="guard"):
        check(manifest(guard=()))


@pytest.mark.parametrize("keyring", [KEYRING, None])
def test_a_manifest_past_its_expiry_is_refused(keyring: Keyring | None) -> None:
    with pytest.raises(ExpiredManifestError, match="60 s"):
        check_manifest(manifest(), ADDRESS, keyring, NOW_S + 120)


@pytest.mark.parametrize("content", [b"", b"another", CONTENT + b"\0"])
def test_another_content_than_the_named_one_is_poisoned(content: bytes) -> None:
    with pytest.raises(PoisonedBlobError):
        check_content(manifest(), content)


def test_key_files_are_read_back_and_private_keys_are_private(tmp_path: Path) -> None:
    ended = replace(new_signer(Space.PROGRAMS).trusted, not_after_s=12)
    write_keyring(tmp_path / "public", [SIGNER.trusted, ended])
    write_signer(tmp_path / "private", SIGNER)
    assert set(read_keyring(tmp_path / "public").keys) == {SIGNER.trusted, ended}
    assert read_signer(tmp_path / "private", Space.KERNELS).trusted == SIGNER.trusted
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert "private" not in repr(read_signer(tmp_path / "private", Space.KERNELS))


def test_files_that_hold_no_keys_are_refused_by_name(tmp_path: Path) -> None:
    write_signer(tmp_path / "private", SIGNER)
    for read in (lambda p: read_signer(p, Space.KERNELS), read_keyring):
        for text in ("", "{}x", '{"space": "kernels"}', '[{"space": "k"}]'):
            (tmp_path / "bad").write_text(text)
            with pytest.raises(CallerError, match="bad"):
                read(tmp_path / "bad")
    with pytest.raises(CallerError, match="signs kernels"):
        read_signer(tmp_path / "private", Space.PROGRAMS)


def test_public_keys_are_encoded_and_decoded() -> None:
    for key in (SIGNER.trusted, replace(SIGNER.trusted, not_after_s=0)):
        assert key_from_proto(key_to_proto(key)) == key
    with pytest.raises(MalformedMessageError):
        key_from_proto(key_to_proto(replace(SIGNER.trusted, public_key=b"short")))


@given(
    st.lists(atoms(), max_size=3).map(tuple),
    st.lists(atoms(), max_size=3).map(tuple),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
def test_different_manifests_have_different_encodings(
    guard: tuple[FactAtom, ...],
    other_guard: tuple[FactAtom, ...],
    tags: tuple[str, ...],
    other_tags: tuple[str, ...],
) -> None:
    one, other = manifest(guard=guard, tags=tags), manifest(guard=other_guard, tags=other_tags)
    is_same = (guard, tags) == (other_guard, other_tags)
    assert (canonical_bytes(one) == canonical_bytes(other)) is is_same
