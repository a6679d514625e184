"""The outcome of a sandboxed compilation: the child writes it, the worker checks it.

The child runs toolchains on untrusted kernels, so the worker trusts nothing in the message: it
checks sizes, digests, names and error classes, and never unpickles an object.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from codegen_svc.backends.stage_times import MAX_TIMES, StageTime
from codegen_svc.sandbox.limits import SandboxLimits
from kernelfarm.errors import (
    CallerError,
    InternalError,
    KernelfarmError,
    KernelLimitError,
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
_REPORTED_ERRORS: Final = (
    KernelRejectedError,
    KernelLimitError,
    UnavailableError,
    VerificationError,
    InternalError,
)
_LOST: Final = "SANDBOX_LOST"


class LostCompilationError(UnavailableError):
    """A compilation whose process, supervisor or folder was removed from outside."""


def outcome_of_variants(
    variants: tuple[BuiltKernel, ...], target: str, times: Sequence[StageTime]
) -> bytes:
    """The message of a compilation with variants, and with the times of its stages."""
    outcome = pb.CompileOutcome(times=_messages_of(times))
    contents: dict[bytes, bytes] = {}
    for variant in variants:
        message, blobs = artifact_to_proto(variant, _NO_KEY, target, "", 0.0)
        contents.update(blobs)
        outcome.artifacts.append(message)
    outcome.contents.extend(contents.values())
    return outcome.SerializeToString()


def outcome_of_error(
    error: BaseException, limits: SandboxLimits, times: Sequence[StageTime]
) -> bytes:
    """The message of a failed compilation; names the limit if one was reached."""
    reported = _error_of_limit(error, limits) or error
    if isinstance(reported, KernelfarmError):
        reason, message = reported.reason, str(reported)
    else:
        reason = InternalError.reason
        message = f"the backend failed with {type(reported).__name__}: {reported}"
    failure = pb.CompileFailure(reason=reason, message=_storable(message))
    return pb.CompileOutcome(failure=failure, times=_messages_of(times)).SerializeToString()


def lost_outcome(message: str) -> bytes:
    """The message of a compilation whose folder was removed."""
    failure = pb.CompileFailure(reason=_LOST, message=_storable(message))
    return pb.CompileOutcome(failure=failure).SerializeToString()


def parsed_outcome(content: bytes) -> pb.CompileOutcome:
    """A child's message; its fields are not checked.

    Raises:
        InternalError: the bytes are no message.
    """
    try:
        return pb.CompileOutcome.FromString(content)
    except DecodeError as error:
        raise InternalError(
            f"a compilation returned {len(content)} bytes that are no message"
        ) from error


def times_of_outcome(
    outcome: pb.CompileOutcome, began_ns: int, ended_ns: int
) -> tuple[StageTime, ...]:
    """The times of the stages, within those of the whole compilation.

    Raises:
        InternalError: a message that breaks the rules.
    """
    if len(outcome.times) > MAX_TIMES:
        raise InternalError(
            f"a compilation returned the times of {len(outcome.times)} stages; expected at most"
            f" {MAX_TIMES}"
        )
    for time in outcome.times:
        _check_stage_name(time.name)
        if not began_ns <= time.began_ns <= time.ended_ns <= ended_ns:
            raise InternalError(
                f"a compilation returned a time of stage {time.name} that is not within its own"
            )
    return tuple(StageTime(time.name, time.began_ns, time.ended_ns) for time in outcome.times)


def variants_of_outcome(
    outcome: pb.CompileOutcome, symbol: str, target: str
) -> tuple[BuiltKernel, ...]:
    """The variants in a child's message.

    Raises:
        KernelRejectedError: the toolchain refuses the kernel.
        KernelLimitError: the compilation reached a limit.
        LostCompilationError: its folder was removed.
        UnavailableError: a tool is missing.
        InternalError: our bug, or a message that breaks the rules.
    """
    if outcome.HasField("failure"):
        raise _reported_error(outcome.failure)
    if not len(outcome.artifacts) <= _MOST_VARIANTS:
        raise InternalError(
            f"a compilation returned {len(outcome.artifacts)} variants; expected at most"
            f" {_MOST_VARIANTS}"
        )
    blobs = {hashlib.sha256(c).digest(): c for c in outcome.contents}
    try:
        built = tuple(built_kernel_from_proto(message, blobs) for message in outcome.artifacts)
    except CallerError as error:
        raise InternalError(f"a compilation returned a malformed artifact: {error}") from error
    for message, variant in zip(outcome.artifacts, built, strict=True):
        if message.target != target or variant.launch.symbol != symbol:
            raise InternalError(f"a compilation of {symbol} for {target} returned another kernel")
        _check_sizes(variant)
    return built


def _check_sizes(variant: BuiltKernel) -> None:
    names = [stage.name for stage in variant.stages]
    texts = [*variant.notes, variant.stub_reason, variant.binary_stage, *variant.launch.arguments]
    is_small = len(names) <= _MOST_STAGES and len(variant.notes) <= _MOST_NOTES
    is_small &= all(len(text) <= _MESSAGE_CHARS for text in texts)
    if not is_small or len(set(names)) != len(names):
        raise InternalError("a compilation returned more stages or notes than any backend makes")
    for name in names:
        _check_stage_name(name)


def _check_stage_name(name: str) -> None:
    if not _STAGE_NAME.fullmatch(name):
        raise InternalError(f"a compilation returned a stage named {name[:64]!r}")


def _messages_of(times: Sequence[StageTime]) -> list[pb.StageTime]:
    return [pb.StageTime(name=t.name, began_ns=t.began_ns, ended_ns=t.ended_ns) for t in times]


def _reported_error(failure: pb.CompileFailure) -> KernelfarmError:
    if failure.reason == _LOST:
        return LostCompilationError(_storable(failure.message))
    kind = next((k for k in _REPORTED_ERRORS if k.reason == failure.reason), InternalError)
    return kind(_storable(failure.message))


def _error_of_limit(error: BaseException, limits: SandboxLimits) -> KernelLimitError | None:
    """The error for the limit that caused a failure of the system; None if none did."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None)
    size = f"more than {limits.file_bytes >> 20} MiB of files"
    limit = {
        errno.ENOMEM: f"needs more than {limits.memory_bytes >> 20} MiB of memory",
        errno.EFBIG: f"writes {size}",
        errno.ENOSPC: f"writes {size}",
        errno.EMFILE: f"opens more than {limits.open_files} files at once",
        errno.EAGAIN: f"needs more than {limits.processes} processes and threads",
    }.get(number if isinstance(number, int) else 0)
    return KernelLimitError(f"the compilation {limit}") if limit else None


def _storable(message: str) -> str:
    return message.encode(errors="replace").decode()[:_MESSAGE_CHARS]
