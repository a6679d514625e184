"""The warming job: captures each case once, and asks the farm for all of its programs.

This thread captures, because torch traces in one thread. Other threads wait for the farm, at most
`parallel` of them. The farm's cache decides what is compiled; the folder of captures only saves
tracing again. So a job that was killed continues where it stopped when it is started again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kernelfarm import spans
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.warming.capture_case import CaptureRequest, capture_case, capture_identity
from kernelfarm.client.warming.captures import CaptureFolder, CaseCapture
from kernelfarm.client.warming.cases import Case, cases_of
from kernelfarm.client.warming.certificate import ProgramCoverage, TraceCoverage
from kernelfarm.client.warming.found import kernels_of, toolchains_of
from kernelfarm.client.warming.manifest import WarmingManifest
from kernelfarm.client.warming.models import CaptureFailedError
from kernelfarm.client.warming.requests import (
    GraphRequest,
    GraphWarmer,
    StaleCaptureError,
    WarmedProgram,
)

_MOST_CAPTURES = 2
"""Captures of a case in one run: the second one if something was invalidated after the first."""


class JobEvents(Protocol):
    """Receives what a job does; methods are called from several threads."""

    def captured(self, case: Case, programs: int, *, is_saved: bool) -> None:
        """A case was captured, or read from the folder; `programs` will be asked for."""

    def failed(self, case: Case, programs: int, reason: str) -> None:
        """A case cannot be captured, so its programs are missing."""

    def warmed(self, case: Case, result: WarmedProgram) -> None:
        """The farm has a program, or refused it."""


@dataclass(frozen=True, slots=True)
class WarmingJob:
    """One run: the manifest, the folder of its `.pt2` files, and how to reach the farm.

    `takes_saved` is False for a run that captures everything again. With `makes_packages`, models
    of one graph are published as packages, too.
    """

    manifest: WarmingManifest
    folder: Path
    access: FarmAccess
    warmer: GraphWarmer
    captures: CaptureFolder
    events: JobEvents
    parallel: int
    takes_saved: bool = True
    makes_packages: bool = False

    def run(self) -> list[ProgramCoverage]:
        """What the farm has afterwards, in the manifest's order.

        Raises:
            CallerError: the manifest has too many cases, or captures cannot be written.
        """
        cases = cases_of(self.manifest)
        self.access.wait_for_invalidations()  # captures state the epoch before them
        executor = ThreadPoolExecutor(self.parallel, thread_name_prefix="warming")
        try:
            return self._run(cases, executor)
        finally:
            self.warmer.retry.end()
            executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, cases: Sequence[Case], executor: ThreadPoolExecutor) -> list[ProgramCoverage]:
        works = [_CaseWork(case) for case in cases]
        for work in works:
            self._start(work, executor)
        waiting = deque(works)
        while waiting:
            work = waiting.popleft()
            try:
                work.results = [future.result() for future in work.futures]
            except StaleCaptureError:
                for future in work.futures:
                    future.exception()  # all of its graphs have been asked for
                self._start(work, executor)
                waiting.append(work)
        return [entry for work in works for entry in self._coverage(work)]

    def _start(self, work: _CaseWork, executor: ThreadPoolExecutor) -> None:
        """Captures a case, and lets threads ask for its programs."""
        case, targets = work.case, self.manifest.targets_of(work.case.model)
        wanted = self._wanted(case)
        try:
            with spans.span("capture case", model=case.model.name):
                parent = spans.traceparent()
                found = self._capture(work, wanted)
        except CaptureFailedError as error:
            work.error, work.futures = str(error), []
            self.events.failed(case, len(targets), str(error))
            return
        is_last = work.captures_made >= _MOST_CAPTURES
        work.futures = [
            executor.submit(
                self._warm,
                case,
                GraphRequest(
                    graph, targets, wanted.options, case.model.tag, self.manifest.devices, parent
                ),
                is_last,
            )
            for graph in found.graphs
        ]

    def _wanted(self, case: Case) -> CaptureRequest:
        flags = self.manifest.options_of(case.model)
        options = CompileOptions(flags.deterministic, flags.fallback_random, flags.product_choice)
        target = self.manifest.traced_target_of(case.model)
        return CaptureRequest(options, flags.is_tuned, self.makes_packages, target)

    def _capture(self, work: _CaseWork, wanted: CaptureRequest) -> CaseCapture:
        case = work.case
        identity = capture_identity(case, self.folder, wanted)
        saved = self.captures.get(identity) if self.takes_saved and not work.futures else None
        if saved is None:
            work.captures_made += 1
            found = capture_case(case, self.access, self.folder, wanted)
            self.captures.put(identity, found)
        else:
            found = saved
        programs = len(found.graphs) * len(self.manifest.targets_of(case.model))
        self.events.captured(case, programs, is_saved=saved is not None)
        return found

    def _warm(self, case: Case, request: GraphRequest, is_last: bool) -> list[WarmedProgram]:
        results: list[WarmedProgram] = []

        def note(result: WarmedProgram) -> None:
            results.append(result)
            self.events.warmed(case, result)

        try:
            self.warmer.warm(request, note)
        except StaleCaptureError:
            if not is_last:
                raise
        return results

    def _coverage(self, work: _CaseWork) -> list[ProgramCoverage]:
        if work.error:
            none = TraceCoverage(state="none", reason="the model was not captured")
            return [
                _entry(work.case, 0, WarmedProgram(target, b"", None, work.error, none))
                for target in self.manifest.targets_of(work.case.model)
            ]
        return [
            _entry(work.case, number, result)
            for number, results in enumerate(work.results)
            for result in results
        ]


@dataclass(slots=True)
class _CaseWork:
    """A case while it is warmed; `error` says why it cannot be captured."""

    case: Case
    error: str = ""
    captures_made: int = 0
    futures: list[Future[list[WarmedProgram]]] = field(default_factory=list)
    results: list[list[WarmedProgram]] = field(default_factory=list)


def _entry(case: Case, graph: int, result: WarmedProgram) -> ProgramCoverage:
    program = result.program
    artifacts = [a for variants in program.kernels for a in variants] if program else []
    return ProgramCoverage(
        model=case.model.name,
        tag=case.model.tag,
        dtype=case.dtype,
        sizes=case.size_texts(),
        graph=graph,
        target=result.target,
        key=result.key.hex(),
        is_present=program is not None,
        reason=result.error,
        kernels=tuple(kernels_of(program)) if program else (),
        toolchains=tuple(toolchains_of(program)) if program else (),
        stub=next((a.stub_reason for a in artifacts if a.is_stub), ""),
        trace=result.trace,
        package=result.package,
        tuning=result.tuning,
    )
