"""What a sandboxed compilation hands back: written by the child, and checked by the worker.

The child runs toolchains over what strangers sent, so nothing that it says is believed: sizes,
digests, names and classes of errors are checked, and objects are never unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import re
from typing import Final

from google.protobuf.message import DecodeError

from codegen_svc.sandbox.limits import SandboxLimits
from kernelfarm.errors import (
    CallerError,
    InternalError,
    KernelfarmError,
    KernelRejectedError,
    UnavailableError,
    VerificationError,
)
from kernelfarm.internal.v1 import sandbox_pb2 as pb
from kernelfarm.ir.artifact import BuiltKernel
from kernelfarm.wire import artifact_to_proto, built_kernel_from_proto

_NO_KEY: Final = bytes(32)
_STAGE_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_MOST_VARIANTS, _MOST_STAGES, _MOST_NOTES = 16, 32, 64
_MESSAGE_CHARS: Final = 4096
_REPORTED_ERRORS: Final = (KernelRejectedError, UnavailableError, VerificationError, InternalError)
_LOST: Final = "SANDBOX_LOST"


class LostCompilationError(UnavailableError):
    """A compilation whose process, supervisor or folder was taken away from outside."""


def outcome_of_variants(variants: tuple[BuiltKernel, ...], target: str) -> bytes:
    """The message of a compilation that gave variants."""
    outcome = pb.CompileOutcome()
    contents: dict[bytes, bytes] = {}
    for variant in variants:
        message, blobs = artifact_to_proto(variant, _NO_KEY, target, "", 0.0)
        contents.update(blobs)
        outcome.artifacts.append(message)
    outcome.contents.extend(contents.values())
    return outcome.SerializeToString()


def outcome_of_error(error: BaseException, limits: SandboxLimits) -> bytes:
    """The message of a compilation that gave none; limits that were hit are named."""
    reported = _error_of_limit(error, limits) or error
    if isinstance(reported, KernelfarmError):
        reason, message = reported.reason, str(reported)
    else:
        reason = InternalError.reason
        message = f"the backend failed with {type(reported).__name__}: {reported}"
    failure = pb.CompileFailure(reason=reason, message=_storable(message))
    return pb.CompileOutcome(failure=failure).SerializeToString()


def lost_outcome(message: str) -> bytes:
    """The message of a compilation whose folder was taken away."""
    failure = pb.CompileFailure(reason=_LOST, message=_storable(message))
    return pb.CompileOutcome(failure=failure).SerializeToString()


def variants_of_outcome(content: bytes, symbol: str, target: str) -> tuple[BuiltKernel, ...]:
    """The variants that a child's message holds.

    Raises:
        KernelRejectedError: the toolchain refuses the kernel, or it hit a limit.
        LostCompilationError: its folder was taken away.
        UnavailableError: a tool is missing.
        InternalError: our bug, or a message that no honest child sends.
    """
    try:
        outcome = pb.CompileOutcome.FromString(content)
    except DecodeError as error:
        raise InternalError(
            f"a compilation ended with {len(content)} bytes of no message"
        ) from error
    if outcome.HasField("failure"):
        raise _reported_error(outcome.failure)
    if not len(outcome.artifacts) <= _MOST_VARIANTS:
        raise InternalError(f"a compilation gave {len(outcome.artifacts)} variants")
    blobs = {hashlib.sha256(c).digest(): c for c in outcome.contents}
    try:
        built = tuple(built_kernel_from_proto(message, blobs) for message in outcome.artifacts)
    except CallerError as error:
        raise InternalError(f"a compilation gave an artifact that is none: {error}") from error
    for message, variant in zip(outcome.artifacts, built, strict=True):
        if message.target != target or variant.launch.symbol != symbol:
            raise InternalError(f"a compilation of {symbol} for {target} gave something else")
        _check_sizes(variant)
    return built


def _check_sizes(variant: BuiltKernel) -> None:
    names = [stage.name for stage in variant.stages]
    texts = [*variant.notes, variant.stub_reason, variant.binary_stage, *variant.launch.arguments]
    is_small = len(names) <= _MOST_STAGES and len(variant.notes) <= _MOST_NOTES
    is_small &= all(len(text) <= _MESSAGE_CHARS for text in texts)
    if not is_small or len(set(names)) != len(names):
        raise InternalError("a compilation gave more stages or notes than any backend has")
    for name in names:
        if not _STAGE_NAME.fullmatch(name):
            raise InternalError(f"a compilation gave a stage with the name {name[:64]!r}")


def _reported_error(failure: pb.CompileFailure) -> KernelfarmError:
    if failure.reason == _LOST:
        return LostCompilationError(_storable(failure.message))
    kind = next((k for k in _REPORTED_ERRORS if k.reason == failure.reason), InternalError)
    return kind(_storable(failure.message))


def _error_of_limit(error: BaseException, limits: SandboxLimits) -> KernelRejectedError | None:
    """The limit that a failure of the system is due to; None if it is due to none."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    size = f"more than {limits.file_bytes >> 20} MiB of files"
    limit = {
        errno.ENOMEM: f"needs more than {limits.memory_bytes >> 20} MiB of memory",
        errno.EFBIG: f"writes {size}",
        errno.ENOSPC: f"writes {size}",
        errno.EMFILE: f"opens more than {limits.open_files} files at once",
        errno.EAGAIN: f"needs more than {limits.processes} processes and threads",
    }.get(number if isinstance(number, int) else 0)
    return KernelRejectedError(f"the compilation {limit}") if limit else None


def _storable(message: str) -> str:
    return message.encode(errors="replace").decode()[:_MESSAGE_CHARS]
