"""Packages at the farm: found, checked and published like traces, and kept on this user's disk.

    the content that is signed    `kernelfarm.v1.Trace`: the key and facts of the package's program,
                                  and the package as its `entry`

The farm never reads a package. It sends it together with its program and kernels, in one response.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.packages.call_facts import Question
from kernelfarm.client.packages.checks import PackageRefusedError, check_header
from kernelfarm.client.packages.header import inflated, parted
from kernelfarm.client.packages.questions import Questions
from kernelfarm.client.settings import ClientSettings
from kernelfarm.client.traces.publication import PACKAGE_TAG
from kernelfarm.client.traces.signed_entries import SignedEntries
from kernelfarm.errors import CallerError, IntegrityError, KernelfarmError, MalformedMessageError
from kernelfarm.v1 import trace_service_pb2 as pb

PACKAGE_COUNTERS = {
    "disk_hit": "packages.disk.hits",
    "farm_hit": "packages.farm.hits",
    "miss": "packages.farm.misses",
    "miss_reason": "packages.farm.misses.*",
    "stale": "packages.farm.stale",
    "failure": "packages.farm.failures.*",
    "published": "packages.farm.published",
    "not_published": "packages.farm.not_published.*",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that may be loaded: everything about it was verified.

    `body` is what PyTorch unpickles. `key` is the key of its program.
    """

    body: bytes = field(repr=False)
    key: bytes


class SharedPackages(SignedEntries[Package]):
    """Finds and publishes the package that answers one question."""

    counter_names = PACKAGE_COUNTERS
    refused_by = (IntegrityError, MalformedMessageError, PackageRefusedError)
    keeps_in_memory = False

    def __init__(self, access: FarmAccess, question: Question) -> None:
        super().__init__(access, question.parts)
        self.question = question
        self._was_refused = False
        self._questions = None if access.disk is None else Questions(access.disk.root)

    def publish(self, content: bytes) -> None:
        """Publishes a package (`MadePackage.content`), if this client may and the farm has none.

        Raises:
            CallerError: the private key cannot be read.
        """
        if self.may_publish:
            self._publish(content, (PACKAGE_TAG,))

    def note_unanswered(self, refusal: KernelfarmError | None = None) -> None:
        """Records for `kernelfarm explain-miss --packages` that no package answered."""
        self._was_refused = refusal is not None
        if self._questions is not None:
            stated = "" if refusal is None else f"{refusal.reason}: {refusal}"
            self._questions.put(self.question.parts, self.question.facts, stated)

    def note_missing(self) -> None:
        """Records that the farm has no package, unless one was refused."""
        if not self._was_refused:
            self.note_unanswered()

    def note_answered(self) -> None:
        """Drops an earlier record of `note_unanswered`."""
        if self._questions is not None:
            self._questions.drop(self.digest)

    def _decoded(self, trace: pb.Trace) -> Package:
        header, body = parted(trace.entry)
        try:
            check_header(header, self.question.parts, self.question.extents)
        except PackageRefusedError as error:
            self.note_unanswered(error)
            raise
        return Package(inflated(body), trace.program_key)

    def _note_refusal(self, error: KernelfarmError) -> None:
        counters.count_refusal("packages", error)


def check_opted_in(settings: ClientSettings) -> None:
    """Checks that a process that trusts packages has pinned the keys of their publishers.

    Raises:
        CallerError: it has not.
    """
    if settings.signing == "off" or settings.trusted_keys_file is None:
        raise CallerError(
            "KERNELFARM_PACKAGES=trusted runs the code of packages, so it needs the keys of their"
            " publishers in KERNELFARM_TRUSTED_KEYS_FILE, and KERNELFARM_SIGNING=required"
        )
