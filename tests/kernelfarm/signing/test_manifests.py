"""Who may say what about an entry: signatures, places, ages, contents, and guards."""

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
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import (
    NO_FACTS,
    TEXT_SUBJECTS,
    CallerFacts,
    FactAtom,
    FactSubject,
    InputFacts,
    atom_holds,
    by_specificity,
    first_failing,
)
from kernelfarm.signing import (
    BlobRef,
    CacheAddress,
    Keyring,
    Manifest,
    Signer,
    Space,
    TrustedKey,
    check_content,
    check_manifest,
    new_signer,
    variant_id,
)
from kernelfarm.signing.encoding import canonical_bytes
from kernelfarm.signing.key_files import read_keyring, read_signer, write_keyring, write_signer
from kernelfarm.wire.manifest import (
    facts_from_proto,
    facts_to_proto,
    key_from_proto,
    key_to_proto,
    manifest_from_bytes,
    manifest_to_bytes,
)

NOW_S = 1_800_000_000
SIGNER = Signer(bytes(range(32)), Space.KERNELS)
KEYRING = Keyring([SIGNER.trusted])
ADDRESS = CacheAddress("default", Space.KERNELS, b"k" * 32)
CONTENT = b"an artifact"

GUARD = (
    FactAtom(FactSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 16),
    FactAtom(FactSubject.INPUT_SIZE, (1, 0), GuardOp.LE, 512),
    FactAtom(FactSubject.INPUT_DTYPE, 0, GuardOp.EQ, "f32"),
    FactAtom(FactSubject.ENVIRONMENT, "driver", GuardOp.GE, "550.54"),
)


def manifest(**changes: object) -> Manifest:
    """A signed statement about a kernel; changes are made before it is signed."""
    unsigned = Manifest(
        namespace="default",
        space=Space.KERNELS,
        key=b"k" * 32,
        variant_id=variant_id(GUARD),
        guard=GUARD,
        tags=("op:aten.gelu.default", "toolchain:cuda@1f2e"),
        epoch=7,
        incarnation="ab" * 16,
        content=BlobRef(hashlib.sha256(CONTENT).digest(), len(CONTENT)),
        blobs=(BlobRef(b"b" * 32, 12),),
        cost_ms=12.5,
        not_after_s=NOW_S + 60,
    )
    return SIGNER.sign(replace(unsigned, **changes))


def check(
    found: Manifest, address: CacheAddress = ADDRESS, keyring: Keyring | None = KEYRING
) -> None:
    check_manifest(found, address, keyring, NOW_S)


def test_what_its_publisher_signed_passes_also_after_a_journey() -> None:
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


def test_a_signature_of_another_key_under_our_name_is_forged() -> None:
    stranger = new_signer(Space.KERNELS)
    forged = replace(stranger.sign(manifest()), key_id=SIGNER.trusted.key_id)
    with pytest.raises(ForgedManifestError):
        check(forged)


def test_strangers_and_the_unsigned_are_not_believed() -> None:
    with pytest.raises(UntrustedKeyError, match="nobody"):
        check(replace(manifest(), key_id="", signature=b""))
    with pytest.raises(UntrustedKeyError):
        check(new_signer(Space.KERNELS).sign(manifest()))


def test_a_worker_may_not_sign_programs() -> None:
    with pytest.raises(UntrustedKeyError, match="programs"):
        check(manifest(space=Space.PROGRAMS), replace(ADDRESS, space=Space.PROGRAMS))


def test_keys_are_rotated_by_overlap() -> None:
    old, new = new_signer(Space.KERNELS), new_signer(Space.KERNELS)
    both = Keyring([replace(old.trusted, not_after_s=NOW_S + 5), new.trusted])
    for signer in (old, new):
        check(signer.sign(manifest()), keyring=both)
    with pytest.raises(UntrustedKeyError, match="ended"):
        check_manifest(old.sign(manifest()), ADDRESS, both, NOW_S + 6)


@pytest.mark.parametrize(
    "address",
    [
        replace(ADDRESS, key=b"x" * 32),
        replace(ADDRESS, namespace="other"),
        replace(ADDRESS, space=Space.PROGRAMS),
    ],
)
@pytest.mark.parametrize("keyring", [KEYRING, None])
def test_a_manifest_replayed_at_another_place_is_misplaced(
    address: CacheAddress, keyring: Keyring | None
) -> None:
    with pytest.raises(ManifestMismatchError):
        check(manifest(), address, keyring)


def test_a_variant_under_the_name_of_another_guard_is_misplaced() -> None:
    with pytest.raises(ManifestMismatchError, match="guard"):
        check(manifest(guard=()))


@pytest.mark.parametrize("keyring", [KEYRING, None])
def test_a_manifest_past_its_time_is_expired(keyring: Keyring | None) -> None:
    with pytest.raises(ExpiredManifestError, match="60 s"):
        check_manifest(manifest(), ADDRESS, keyring, NOW_S + 120)


@pytest.mark.parametrize("content", [b"", b"another", CONTENT + b"\0"])
def test_another_content_than_the_named_one_is_poisoned(content: bytes) -> None:
    with pytest.raises(PoisonedBlobError):
        check_content(manifest(), content)


def test_key_files_come_back_and_private_ones_are_private(tmp_path: Path) -> None:
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


def test_public_keys_travel() -> None:
    for key in (SIGNER.trusted, replace(SIGNER.trusted, not_after_s=0)):
        assert key_from_proto(key_to_proto(key)) == key
    with pytest.raises(MalformedMessageError):
        key_from_proto(key_to_proto(replace(SIGNER.trusted, public_key=b"short")))


FACTS = CallerFacts(
    {"s0": 32},
    (
        InputFacts((32, 8), (8, 1), 64, "f32"),
        InputFacts((512,), (1,), 0, "bf16"),
    ),
    {"driver": "550.54.15", "torch": "2.13.0"},
)


def test_facts_travel() -> None:
    assert facts_from_proto(facts_to_proto(FACTS)) == FACTS


def test_a_guard_holds_for_facts_that_meet_every_condition() -> None:
    assert first_failing(GUARD, FACTS) is None
    assert first_failing((), NO_FACTS) is None
    for atom in GUARD:
        assert first_failing(GUARD, NO_FACTS) == GUARD[0]
        assert not atom_holds(atom, NO_FACTS), f"{atom} without facts"


@pytest.mark.parametrize(
    ("seen", "op", "operand", "holds"),
    [
        ("550.54.15", GuardOp.GE, "550.54", True),
        ("550.9", GuardOp.LT, "550.54", True),
        ("2.13.0", GuardOp.LE, "2.13", True),
        ("2.13.0+cpu", GuardOp.GT, "2.12", True),
        ("2.13.0", GuardOp.EQ, "2.13", False),
        ("unknown", GuardOp.GE, "1", False),
        ("2.9", GuardOp.GE, "2.13", False),
    ],
)
def test_versions_compare_by_their_numbers(
    seen: str, op: GuardOp, operand: str, holds: bool
) -> None:
    atom = FactAtom(FactSubject.ENVIRONMENT, "v", op, operand)
    assert atom_holds(atom, CallerFacts(environment={"v": seen})) is holds


def test_an_unknown_alignment_or_axis_does_not_hold() -> None:
    for subject, where in (
        (FactSubject.INPUT_ALIGNMENT, 1),
        (FactSubject.INPUT_SIZE, (1, 1)),
        (FactSubject.INPUT_STRIDE, (2, 0)),
    ):
        assert not atom_holds(FactAtom(subject, where, GuardOp.GE, 0), FACTS)


def test_more_conditions_come_first_and_equal_ones_keep_their_order() -> None:
    assert by_specificity([(), GUARD[:1], GUARD, GUARD[1:2]]) == [2, 1, 3, 0]


@st.composite
def atoms(draw: st.DrawFn) -> FactAtom:
    subject = draw(st.sampled_from(FactSubject))
    is_text = subject in TEXT_SUBJECTS
    ops = [op for op in GuardOp if op is not GuardOp.DIVISIBLE] if is_text else list(GuardOp)
    if subject is FactSubject.INPUT_DTYPE:
        ops = [GuardOp.EQ, GuardOp.NE]
    op = draw(st.sampled_from(ops))
    number = st.integers(0, 2**31)
    where: st.SearchStrategy[object] = number
    if subject in {FactSubject.SYMBOL, FactSubject.ENVIRONMENT}:
        where = st.text(max_size=9)
    elif subject in {FactSubject.INPUT_SIZE, FactSubject.INPUT_STRIDE}:
        where = st.tuples(number, number)
    operand = st.text(max_size=9) if is_text else st.integers(1, 2**62)
    return FactAtom(subject, draw(where), op, draw(operand))


@given(st.lists(atoms(), max_size=4).map(tuple))
def test_any_guard_travels(guard: tuple[FactAtom, ...]) -> None:
    made = manifest(guard=guard, variant_id=variant_id(guard))
    assert manifest_from_bytes(manifest_to_bytes(made)) == made


@given(
    st.lists(atoms(), max_size=3).map(tuple),
    st.lists(atoms(), max_size=3).map(tuple),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
def test_different_statements_have_different_bytes(
    guard: tuple[FactAtom, ...],
    other_guard: tuple[FactAtom, ...],
    tags: tuple[str, ...],
    other_tags: tuple[str, ...],
) -> None:
    one, other = manifest(guard=guard, tags=tags), manifest(guard=other_guard, tags=other_tags)
    is_same = (guard, tags) == (other_guard, other_tags)
    assert (canonical_bytes(one) == canonical_bytes(other)) is is_same
