"""Codec of manifests, their guards, public keys, and callers' facts."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import (
    NO_FACTS,
    TEXT_SUBJECTS,
    CallerFacts,
    FactAtom,
    FactSubject,
    InputFacts,
)
from kernelfarm.signing import BlobRef, Manifest, Space, TrustedKey
from kernelfarm.signing.keys import KEY_BYTES
from kernelfarm.v1 import artifact_pb2, manifest_pb2
from kernelfarm.wire.launch_facts import guard_op_from_proto, guard_op_to_proto
from kernelfarm.wire.names import MAX_LABEL_CHARS, MAX_TEXT_CHARS, checked_name

MAX_ATOMS = 64
MAX_SYMBOLS = 4096
MAX_INPUTS = 65_536
"""The most inputs; a graph with the most nodes that a farm accepts has fewer."""
MAX_ENVIRONMENT = 256

_SPACES = {
    Space.PROGRAMS: manifest_pb2.CACHE_SPACE_PROGRAMS,
    Space.KERNELS: manifest_pb2.CACHE_SPACE_KERNELS,
    Space.TRACES: manifest_pb2.CACHE_SPACE_TRACES,
}
_SPACES_BACK: dict[int, Space] = {number: space for space, number in _SPACES.items()}
_TIMES = range(-62_135_596_800, 253_402_300_800)
"""The seconds of a protobuf timestamp: the years 1 to 9999."""
_AXIS_SUBJECTS = frozenset({FactSubject.INPUT_SIZE, FactSubject.INPUT_STRIDE})


def manifest_to_proto(manifest: Manifest) -> manifest_pb2.Manifest:
    """The message of a manifest."""
    message = manifest_pb2.Manifest(
        namespace=manifest.namespace,
        space=_SPACES[manifest.space],
        key=manifest.key,
        variant_id=manifest.variant_id,
        guard=fact_guard_to_proto(manifest.guard),
        tags=manifest.tags,
        epoch=manifest.epoch,
        incarnation=manifest.incarnation,
        content=_blob_to_proto(manifest.content),
        blobs=[_blob_to_proto(blob) for blob in manifest.blobs],
        cost_ms=manifest.cost_ms,
        key_id=manifest.key_id,
        signature=manifest.signature,
    )
    message.not_after_time.FromSeconds(manifest.not_after_s)
    return message


def manifest_from_proto(message: manifest_pb2.Manifest) -> Manifest:
    """The manifest of a message, whose signature is not checked.

    Raises:
        MalformedMessageError: a digest is not 32 bytes, the space or guard has an unknown form, or
            its time is out of range.
    """
    space = _SPACES_BACK.get(message.space)
    if space is None:
        raise MalformedMessageError(f"manifest: space number {message.space}; expected 1, 2 or 3")
    for name, digest in (("key", message.key), ("variant_id", message.variant_id)):
        if len(digest) != DIGEST_BYTES:
            raise MalformedMessageError(f"manifest, {name}: {len(digest)} bytes; expected 32")
    return Manifest(
        namespace=checked_name(message.namespace, "manifest: a namespace", MAX_LABEL_CHARS),
        space=space,
        key=message.key,
        variant_id=message.variant_id,
        guard=fact_guard_from_proto(message.guard),
        tags=tuple(checked_name(tag, "manifest: a tag", MAX_LABEL_CHARS) for tag in message.tags),
        epoch=message.epoch,
        incarnation=checked_name(message.incarnation, "manifest: an incarnation"),
        content=_blob_from_proto(message.content),
        blobs=tuple(_blob_from_proto(blob) for blob in message.blobs),
        cost_ms=message.cost_ms,
        not_after_s=_seconds_of(message.not_after_time),
        key_id=checked_name(message.key_id, "manifest: a key's name"),
        signature=message.signature,
    )


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """The stored form of a manifest."""
    return manifest_to_proto(manifest).SerializeToString(deterministic=True)


def manifest_from_bytes(stored: bytes) -> Manifest:
    """A stored manifest.

    Raises:
        MalformedMessageError: the bytes are not a manifest.
    """
    try:
        return manifest_from_proto(manifest_pb2.Manifest.FromString(stored))
    except DecodeError as error:
        raise MalformedMessageError(f"{len(stored)} bytes that are no manifest: {error}") from error


def fact_guard_to_proto(guard: tuple[FactAtom, ...]) -> artifact_pb2.Guard:
    """The message of a guard over a caller's facts."""
    return artifact_pb2.Guard(atoms=[_atom_to_proto(atom) for atom in guard])


def fact_guard_from_proto(message: artifact_pb2.Guard) -> tuple[FactAtom, ...]:
    """The conditions of a guard over a caller's facts.

    Raises:
        MalformedMessageError: there are too many, a subject or comparison is unknown, or an operand
            is wrong.
    """
    if len(message.atoms) > MAX_ATOMS:
        raise MalformedMessageError(f"guard: {len(message.atoms)} atoms; expected <= {MAX_ATOMS}")
    return tuple(_atom_from_proto(number, atom) for number, atom in enumerate(message.atoms))


def facts_from_proto(message: manifest_pb2.CallerFacts) -> CallerFacts:
    """The facts of a message.

    Raises:
        MalformedMessageError: there are more than any graph has, or a name is too long.
    """
    if not message.ByteSize():
        return NO_FACTS
    _check_counts(message)
    return CallerFacts(
        dict(message.symbols),
        tuple(
            InputFacts(tuple(i.sizes), tuple(i.strides), i.alignment_bytes, i.dtype)
            for i in message.inputs
        ),
        dict(message.environment),
    )


def _check_counts(message: manifest_pb2.CallerFacts) -> None:
    for what, count, most in (
        ("symbols", len(message.symbols), MAX_SYMBOLS),
        ("inputs", len(message.inputs), MAX_INPUTS),
        ("facts of an environment", len(message.environment), MAX_ENVIRONMENT),
    ):
        if count > most:
            raise MalformedMessageError(f"a caller's facts: {count} {what}; expected <= {most}")
    for name in message.symbols:
        checked_name(name, "a caller's facts: a symbol")
    for name, value in message.environment.items():
        checked_name(name, "a caller's facts: a name")
        checked_name(value, "a caller's facts: a value", MAX_TEXT_CHARS)


def facts_to_proto(facts: CallerFacts) -> manifest_pb2.CallerFacts:
    """The message of a caller's facts."""
    return manifest_pb2.CallerFacts(
        symbols=facts.symbols,
        inputs=[
            manifest_pb2.InputFacts(
                sizes=i.sizes, strides=i.strides, alignment_bytes=i.alignment_bytes, dtype=i.dtype
            )
            for i in facts.inputs
        ],
        environment=facts.environment,
    )


def key_to_proto(key: TrustedKey) -> manifest_pb2.PublicKey:
    """The message of a public key."""
    message = manifest_pb2.PublicKey(
        key_id=key.key_id, public_key=key.public_key, space=_SPACES[key.space]
    )
    if key.not_after_s is not None:
        message.not_after_time.FromSeconds(key.not_after_s)
    return message


def key_from_proto(message: manifest_pb2.PublicKey) -> TrustedKey:
    """The public key of a message.

    Raises:
        MalformedMessageError: it is not 32 bytes, its space is unknown, or its time is out of
        range.
    """
    space = _SPACES_BACK.get(message.space)
    if space is None or len(message.public_key) != KEY_BYTES:
        raise MalformedMessageError(
            f"public key of {len(message.public_key)} bytes for space number {message.space};"
            " expected 32 bytes for 1, 2 or 3"
        )
    ends = message.HasField("not_after_time")
    not_after_s = _seconds_of(message.not_after_time) if ends else None
    return TrustedKey(message.public_key, space, not_after_s)


def _seconds_of(time: Timestamp) -> int:
    """The seconds of a time, if a message can hold it."""
    if time.seconds not in _TIMES:
        raise MalformedMessageError(
            f"a time of {time.seconds} s; expected one of the years 1 to 9999"
        )
    return time.seconds


def _atom_to_proto(atom: FactAtom) -> artifact_pb2.GuardAtom:
    message = artifact_pb2.GuardAtom(op=guard_op_to_proto(atom.op))
    if isinstance(atom.where, tuple):
        axis = getattr(message, atom.subject.value)
        axis.input, axis.axis = atom.where
        axis.SetInParent()
    else:
        setattr(message, atom.subject.value, atom.where)
    if isinstance(atom.operand, int):
        message.operand = atom.operand
    else:
        message.text = atom.operand
    return message


def _atom_from_proto(number: int, message: artifact_pb2.GuardAtom) -> FactAtom:
    where = f"guard atom {number}"
    form = message.WhichOneof("subject")
    known = [subject for subject in FactSubject if subject.value == form]
    op = guard_op_from_proto(message.op)
    if not known or op is None:
        raise MalformedMessageError(
            f"{where}: subject {form or 'not set'}, comparison number {message.op}; expected"
            f" one of {', '.join(subject.value for subject in FactSubject)} and a comparison"
        )
    (subject,) = known
    _check_operand(where, subject, op, message)
    named = getattr(message, subject.value)
    if subject in _AXIS_SUBJECTS:
        named = (named.input, named.axis)
    operand = message.text if subject in TEXT_SUBJECTS else message.operand
    return FactAtom(subject, named, op, operand)


def _check_operand(
    where: str, subject: FactSubject, op: GuardOp, message: artifact_pb2.GuardAtom
) -> None:
    if subject in TEXT_SUBJECTS:
        is_word = op in {GuardOp.EQ, GuardOp.NE}
        if op is GuardOp.DIVISIBLE or (subject is FactSubject.INPUT_DTYPE and not is_word):
            raise MalformedMessageError(f"{where}: {subject.value} cannot be {op.value} a word")
    elif op is GuardOp.DIVISIBLE and message.operand < 1:
        raise MalformedMessageError(f"{where}: divisor {message.operand}; expected 1 or more")


def _blob_to_proto(blob: BlobRef) -> artifact_pb2.Blob:
    return artifact_pb2.Blob(sha256=blob.sha256, size_bytes=blob.size_bytes)


def _blob_from_proto(message: artifact_pb2.Blob) -> BlobRef:
    if len(message.sha256) != DIGEST_BYTES:
        raise MalformedMessageError(f"manifest, blob: digest of {len(message.sha256)} bytes")
    return BlobRef(message.sha256, message.size_bytes)
