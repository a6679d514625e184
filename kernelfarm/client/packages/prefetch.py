"""Fetches the package of a call in the background, before the model has its weights.

The package goes to this user's disk, where the first call finds and checks it again. Its program
came with it, and is kept in memory for that call, unless something was invalidated in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.packages.call_facts import Question
from kernelfarm.client.packages.shared import SharedPackages
from kernelfarm.client.process.exit import run_in_background
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.pytorch.private.packages import import_for_packages

_WAIT_S = 30.0
"""Longer than the timeouts of all look-ups of one call."""


class PackagePrefetch:
    """A thread that looks up the package that answers the first of some questions."""

    def __init__(self, access: FarmAccess, questions: Sequence[Question]) -> None:
        self.digests = frozenset(question.digest for question in questions)
        self._access = access
        self._questions = questions
        self._programs: dict[bytes, PrefetchedProgram] = {}
        self._thread = run_in_background(self._run, "prefetch package")

    def wait(self) -> None:
        """Waits until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join(_WAIT_S)

    def program(self, key: bytes) -> PrefetchedProgram | None:
        """The program that came with the package, if nothing was invalidated since then."""
        found, known = self._programs.get(key), self._access.watch.invalidations
        if found is None or known is None or found.known.invalidations is None:
            return None
        then = found.known.invalidations
        is_same = (then.incarnation, then.epoch) == (known.incarnation, known.epoch)
        return found if is_same else None

    def _run(self) -> None:
        for question in self._questions:
            found = SharedPackages(self._access, question).find()
            if found is None:
                continue
            counters.count("packages.prefetched")
            if found.prefetched is not None:
                self._programs[found.entry.key] = found.prefetched
            break
        import_for_packages()
