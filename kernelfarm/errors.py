"""The one error hierarchy, and how each error looks over gRPC.

Raise where the fact is known; `kernelfarm.service.interceptors` translates once, at the edge.
A message says what was seen, what was expected, and what to do next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar


class KernelfarmError(Exception):
    """Any error that kernelfarm raises on purpose.

    `status` is the name of the gRPC status, `reason` a stable word that programs may test.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "INTERNAL"
    retry_after_s: float | None = None
    was_cached: bool = False
    """Whether it is told again without the work that found it."""


class CallerError(KernelfarmError):
    """The caller's mistake: the same request fails again."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class MalformedMessageError(CallerError):
    """Bytes that are no valid message, or a message whose required parts are missing."""

    reason = "MALFORMED_MESSAGE"


class NoMessageError(MalformedMessageError):
    """A call that ended before its message was there."""


class InvalidGraphError(CallerError):
    """A graph that breaks a rule: a cycle, an undefined value, a shape against its operator."""

    reason = "INVALID_GRAPH"


class UnsupportedDTypeError(CallerError):
    """An element type that the farm does not know."""

    reason = "UNSUPPORTED_DTYPE"


class UnknownTargetError(CallerError):
    """A target descriptor that names no chip of this farm."""

    reason = "UNKNOWN_TARGET"


class UnsupportedVersionError(CallerError):
    """A contract version that this farm does not speak."""

    status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_ABI_VERSION"


class MessageTooLargeError(CallerError):
    """A message larger than the farm accepts."""

    status = "RESOURCE_EXHAUSTED"
    reason = "MESSAGE_TOO_LARGE"


class WorkBudgetError(CallerError):
    """A graph whose compilation takes more steps than one request may; retrying is futile."""

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
    """A caller without the right to what it asks for."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class ReadOnlyRoleError(PermissionDeniedError):
    """A reader that asks for what is not compiled yet."""

    reason = "READ_ONLY_ROLE"


class OtherTenantError(PermissionDeniedError):
    """A tenant that asks for what is another tenant's."""

    reason = "OTHER_TENANT"


class UnauthenticatedError(CallerError):
    """A caller without credentials, where the farm knows its tenants."""

    status = "UNAUTHENTICATED"
    reason = "CREDENTIALS_MISSING"


class UnknownTokenError(UnauthenticatedError):
    """A token that no tenant has, or has any more."""

    reason = "TOKEN_UNKNOWN"


class ExpiredTokenError(UnauthenticatedError):
    """A token past its time."""

    reason = "TOKEN_EXPIRED"


class UnknownCertificateError(UnauthenticatedError):
    """A valid client certificate whose names belong to no tenant."""

    reason = "CERTIFICATE_UNKNOWN"


class CredentialsDisagreeError(UnauthenticatedError):
    """A token of one tenant over the certificate of another."""

    reason = "CREDENTIALS_DISAGREE"


class QuotaError(CallerError):
    """A tenant that holds as much as it may; waiting does not help."""

    status = "RESOURCE_EXHAUSTED"
    reason = "QUOTA"


class BytesQuotaError(QuotaError):
    """As many bytes as the tenant may hold."""

    reason = "QUOTA_BYTES"


class EntriesQuotaError(QuotaError):
    """As many entries as the tenant may hold."""

    reason = "QUOTA_ENTRIES"


class KernelRejectedError(CallerError):
    """A kernel that the target's toolchain cannot compile; deterministic, so retrying is futile."""

    status = "FAILED_PRECONDITION"
    reason = "KERNEL_REJECTED"


class UnavailableError(KernelfarmError):
    """A room, broker, cache or toolchain that does not answer now; retry with backoff."""

    status = "UNAVAILABLE"
    reason = "UNAVAILABLE"
    retry_after_s = 1.0


class NoAnswerError(UnavailableError):
    """A process that is not there, or went away in the middle; another one may come soon."""

    reason = "NO_ANSWER"


class WorkProcessError(UnavailableError):
    """The process that worked on a request ended; that cost this attempt, and nothing else."""

    reason = "WORK_PROCESS_ENDED"


class WorkTimeError(KernelfarmError):
    """Work that was ended because it used more processor time than one request may."""

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
    """As many compilations in flight as the tenant may have; retry after the delay."""

    reason = "QUOTA_COMPILES"


class WatchesQuotaError(FarmFullError):
    """As many open streams of invalidations as the tenant, or all, may have; close one."""

    reason = "QUOTA_WATCHES"


class DeadlineError(KernelfarmError):
    """The caller's deadline passed; the work goes on for later callers."""

    status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class InternalError(KernelfarmError):
    """Our bug: an invariant does not hold."""


class IntegrityError(KernelfarmError):
    """What a cache gave is not what its publisher made; it is dropped, so retrying compiles."""

    status = "DATA_LOSS"
    reason = "INTEGRITY"


class ForgedManifestError(IntegrityError):
    """A signature that is not its key's over this manifest."""

    reason = "FORGED_MANIFEST"


class UntrustedKeyError(IntegrityError):
    """A manifest that nobody signed whom we believe."""

    reason = "UNTRUSTED_KEY"


class ManifestMismatchError(IntegrityError):
    """A manifest that was made for another key, space, namespace or guard."""

    reason = "MANIFEST_MISMATCH"


class ExpiredManifestError(IntegrityError):
    """A manifest past its time."""

    reason = "EXPIRED_MANIFEST"


class PoisonedBlobError(IntegrityError):
    """A content of another digest than the one that it was stored under."""

    reason = "POISONED_BLOB"


class VerificationError(InternalError):
    """An IR that a pass produced breaks a rule of its grammar."""

    reason = "VERIFICATION_FAILED"


MESSAGE_BYTES = 1024
"""The longest message of an error, in UTF-8: what a client sent is in it, and comes back to it.

It travels twice in gRPC's trailers, which hold 8 KiB: once as text whose bytes beyond ASCII take
three each, once in the details, in base64.
"""

QUOTED_CHARS = 160
"""How much of one text of a client's a message quotes."""

_UNPRINTABLE = re.compile(
    r"[^\x20-\x7e\n\t\u00a0-\U0010ffff]|[\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def bounded(message: str, max_bytes: int = MESSAGE_BYTES) -> str:
    """A message that is short enough, cut in its middle, with control characters spelled out."""
    # What is thrown away anyway is not looked at: a message may be megabytes.
    unseen = max(0, len(message) - 2 * max_bytes)
    data = _encoded(message[:max_bytes]) + _encoded(message[max_bytes + unseen :])
    if not unseen and len(data) <= max_bytes:
        return data.decode()
    left_bytes = max_bytes - len(_CUT.format(len(message) + len(data)))
    head_bytes = 2 * left_bytes // 3
    head = data[:head_bytes].decode(errors="ignore")
    tail = data[head_bytes - left_bytes :].decode(errors="ignore")
    cut = unseen + len(data.decode()) - len(head) - len(tail)
    return f"{head}{_CUT.format(cut)}{tail}"


def quoted(text: str) -> str:
    """A client's text as a message quotes it: short, in quotes, on one line."""
    if len(text) <= QUOTED_CHARS:
        return repr(text)
    half = QUOTED_CHARS // 2
    return f"{text[:half] + '...' + text[-half:]!r} ({len(text)} characters)"


_CUT = " ...[{} characters left out]... "


def _encoded(text: str) -> bytes:
    return _UNPRINTABLE.sub(_spelled_out, text).encode("utf-8", "backslashreplace")


def _spelled_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What travels of an error: status name, reason word, message, and the delay before a retry.

    The message is `bounded`, wherever the facts come from.
    """

    status: str
    reason: str
    message: str
    retry_after_s: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message))


def error_facts(error: BaseException) -> ErrorFacts:
    """The facts of an error as they travel; foreign exceptions are our bug and stay anonymous."""
    if isinstance(error, KernelfarmError):
        return ErrorFacts(error.status, error.reason, str(error), error.retry_after_s)
    message = "internal error: report it with the request id"
    return ErrorFacts("INTERNAL", "INTERNAL", message, None)


def error_from_facts(facts: ErrorFacts) -> KernelfarmError:
    """The error that facts tell of, of the class that was raised elsewhere.

    A reason that this version does not know becomes the nearest class of the same status.
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
