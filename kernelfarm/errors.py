"""All errors of kernelfarm, with the gRPC status of each.

Code raises an error where the fact is known; `kernelfarm.service.edge_calls` translates it to
gRPC. A message says what was seen, what was expected, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kernelfarm.bounded_text import bounded


class KernelfarmError(Exception):
    """The base of all errors that kernelfarm raises on purpose.

    `status` is the name of the gRPC status, and `reason` a stable word that programs may test.
    `retry_after_s` is the delay before a retry, None if a retry does not help.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "INTERNAL"
    retry_after_s: float | None = None
    was_cached: bool = False
    """True if the error comes from a cache of errors, without the work that found it."""


class CallerError(KernelfarmError):
    """A mistake of the caller: the same request fails again."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class MalformedMessageError(CallerError):
    """Bytes that are not a valid message, or a message without a required field."""

    reason = "MALFORMED_MESSAGE"


class NoMessageError(MalformedMessageError):
    """A call that ended before its message arrived."""


class InvalidGraphError(CallerError):
    """A graph that breaks a rule: a cycle, an undefined value, a shape that an operator forbids."""

    reason = "INVALID_GRAPH"


class UserKernelError(CallerError):
    """A user's Triton kernel whose source or signature breaks a rule; nothing of it has run."""

    reason = "USER_KERNEL"


class TileProgramError(CallerError):
    """A tile program of TileLang that has a form which is not accepted; nothing of it has run."""

    reason = "TILE_PROGRAM"


class UnsupportedDTypeError(CallerError):
    """An element type that the farm does not support."""

    reason = "UNSUPPORTED_DTYPE"


class UnknownTargetError(CallerError):
    """A target that this farm does not support."""

    reason = "UNKNOWN_TARGET"


class UnsupportedVersionError(CallerError):
    """An ABI version that this farm does not support."""

    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_ABI_VERSION"


class MessageTooLargeError(CallerError):
    """A message larger than the farm accepts."""

    status = "RESOURCE_EXHAUSTED"
    reason = "MESSAGE_TOO_LARGE"


class WorkBudgetError(CallerError):
    """A graph whose compilation exceeds the work budget; a retry does not help."""

    status = "RESOURCE_EXHAUSTED"
    reason = "WORK_BUDGET"


class BodyTooSlowError(CallerError):
    """A message that did not arrive in time; send it again over a better connection."""

    status = "DEADLINE_EXCEEDED"
    reason = "BODY_TOO_SLOW"


class NotFoundError(CallerError):
    """A key or digest that is not stored."""

    status = "NOT_FOUND"
    reason = "NOT_FOUND"


class PermissionDeniedError(CallerError):
    """A caller without the role that the call needs."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class ReadOnlyRoleError(PermissionDeniedError):
    """A reader's request for a program that is not compiled yet."""

    reason = "READ_ONLY_ROLE"


class OtherTenantError(PermissionDeniedError):
    """A tenant's request for data of another tenant."""

    reason = "OTHER_TENANT"


class UnauthenticatedError(CallerError):
    """A caller without valid credentials in a farm with tenants."""

    status = "UNAUTHENTICATED"
    reason = "CREDENTIALS_MISSING"


class UnknownTokenError(UnauthenticatedError):
    """A token that belongs to no tenant, for example after it was revoked."""

    reason = "TOKEN_UNKNOWN"


class ExpiredTokenError(UnauthenticatedError):
    """A token that has expired."""

    reason = "TOKEN_EXPIRED"


class UnknownCertificateError(UnauthenticatedError):
    """A valid client certificate whose names belong to no tenant."""

    reason = "CERTIFICATE_UNKNOWN"


class CredentialsDisagreeError(UnauthenticatedError):
    """A call with the token of one tenant and the client certificate of another."""

    reason = "CREDENTIALS_DISAGREE"


class QuotaError(CallerError):
    """A tenant that has reached its quota; waiting does not help."""

    status = "RESOURCE_EXHAUSTED"
    reason = "QUOTA"


class BytesQuotaError(QuotaError):
    """A tenant that has reached its quota of bytes."""

    reason = "QUOTA_BYTES"


class EntriesQuotaError(QuotaError):
    """A tenant that has reached its quota of entries."""

    reason = "QUOTA_ENTRIES"


class KernelRejectedError(CallerError):
    """A kernel that the target's toolchain cannot compile; a retry does not help."""

    status = "FAILED_PRECONDITION"
    reason = "KERNEL_REJECTED"


class KernelLimitError(KernelRejectedError):
    """A kernel whose compilation reached a limit of the worker, or ended it.

    This does not follow from the kernel alone: another worker, or the same one later, may compile
    it.
    """

    reason = "KERNEL_LIMIT"


class ToolchainMismatchError(CallerError):
    """A program of another farm was made by toolchains that this farm does not run."""

    status = "FAILED_PRECONDITION"
    reason = "TOOLCHAIN_MISMATCH"


class MissingMethodError(KernelfarmError):
    """A method that the other side does not have, because it is older than the caller."""

    status = "UNIMPLEMENTED"
    reason = "MISSING_METHOD"


class UnavailableError(KernelfarmError):
    """A service, broker, cache or toolchain that does not answer now; retry with backoff."""

    status = "UNAVAILABLE"
    reason = "UNAVAILABLE"
    retry_after_s = 1.0


class NoAnswerError(UnavailableError):
    """A process that does not run, or ended during the call; it may be restarted soon."""

    reason = "NO_ANSWER"


class WorkProcessError(UnavailableError):
    """The process that worked on a request ended, and only this attempt is lost; retry."""

    reason = "WORK_PROCESS_ENDED"


class WorkTimeError(KernelfarmError):
    """Work that was ended because it used more processor time than one request may use."""

    status = "RESOURCE_EXHAUSTED"
    reason = "WORK_TIME"


class WorkMemoryError(KernelfarmError):
    """Work that was ended because it needs more memory than one request may use."""

    status = "RESOURCE_EXHAUSTED"
    reason = "WORK_MEMORY"


class FarmFullError(UnavailableError):
    """Too much work is queued; retry after the delay."""

    status = "RESOURCE_EXHAUSTED"
    reason = "FARM_FULL"


class CompilesQuotaError(FarmFullError):
    """A tenant with its maximum of compilations in flight; retry after the delay."""

    reason = "QUOTA_COMPILES"


class WatchesQuotaError(FarmFullError):
    """A tenant, or a gateway, with its maximum of open invalidation streams; close one."""

    reason = "QUOTA_WATCHES"


class DeadlineError(KernelfarmError):
    """The caller's deadline passed; the work continues for later callers."""

    status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class InternalError(KernelfarmError):
    """A bug in kernelfarm: an invariant does not hold."""


class IntegrityError(KernelfarmError):
    """A cached content that fails its verification; it is dropped, so a retry compiles again."""

    status = "DATA_LOSS"
    reason = "INTEGRITY"


class ForgedManifestError(IntegrityError):
    """A manifest with an invalid signature."""

    reason = "FORGED_MANIFEST"


class UntrustedKeyError(IntegrityError):
    """A manifest that no trusted key signed."""

    reason = "UNTRUSTED_KEY"


class ManifestMismatchError(IntegrityError):
    """A manifest for another key, key space, namespace or guard."""

    reason = "MANIFEST_MISMATCH"


class ExpiredManifestError(IntegrityError):
    """A manifest that has expired."""

    reason = "EXPIRED_MANIFEST"


class PoisonedBlobError(IntegrityError):
    """A content whose digest differs from the one under which it was stored."""

    reason = "POISONED_BLOB"


class VerificationError(InternalError):
    """An IR of a pass that breaks a rule of its grammar."""

    reason = "VERIFICATION_FAILED"


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What is sent of an error: status name, reason, message, and the delay before a retry.

    The message is always `bounded`.
    """

    status: str
    reason: str
    message: str
    retry_after_s: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message))


def error_facts(error: BaseException) -> ErrorFacts:
    """The facts of an error; for other exceptions, which are our bugs, they reveal nothing."""
    if isinstance(error, KernelfarmError):
        return ErrorFacts(error.status, error.reason, str(error), error.retry_after_s)
    message = "internal error: report it with the request id"
    return ErrorFacts("INTERNAL", "INTERNAL", message, None)


def error_from_facts(facts: ErrorFacts) -> KernelfarmError:
    """The error with these facts, of the class that was raised.

    If this version does not know the reason, it is the first class with the same status.
    """
    kinds = list(_kinds(KernelfarmError))
    kind = next(
        (k for k in kinds if (k.status, k.reason) == (facts.status, facts.reason)),
        next((k for k in kinds if k.status == facts.status), InternalError),
    )
    error = kind(facts.message)
    error.retry_after_s = facts.retry_after_s
    return error


def _kinds(kind: type[KernelfarmError]) -> Iterator[type[KernelfarmError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)
