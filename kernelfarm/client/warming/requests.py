"""Warms one graph at a farm: finds or compiles its programs for all targets, publishes its traces.

Calls are repeated while the farm cannot serve them. A target that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kernelfarm import spans
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.client import FarmClient, WarmUp
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.packages import header as packages
from kernelfarm.client.traces.header import joined, parted
from kernelfarm.client.traces.publication import PACKAGE_TAG, Epoch, PublishedTrace, publish_trace
from kernelfarm.client.traces.shared import trace_content
from kernelfarm.client.warming.captures import CapturedCaseGraph
from kernelfarm.client.warming.certificate import TraceCoverage, TuningCoverage
from kernelfarm.client.warming.found import checked_trace
from kernelfarm.client.warming.retry import Retry, is_temporary
from kernelfarm.client.warming.tuning import FleetChoices, TunedGraph
from kernelfarm.digest import program_keys, trace_digest
from kernelfarm.errors import KernelfarmError, NotFoundError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import NO_FACTS
from kernelfarm.signing import Signer
from kernelfarm.targets import target_facts
from kernelfarm.v1 import graph_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire import graph_from_proto

_TRACE_TIMEOUT_S = 30.0
_NO_KEY = "no key for traces: set KERNELFARM_TRACE_KEY_FILE to publish them"


class StaleCaptureError(Exception):
    """A capture is older than an invalidation, or than the farm's epoch table: capture it again."""


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """A captured graph, and what to ask the farm for; `model` is `id@revision` or empty.

    `devices` are those of a target for which the fleet's choices are warmed. `traceparent` names
    the span that its requests belong to; it may be empty.
    """

    captured: CapturedCaseGraph
    targets: tuple[str, ...]
    options: CompileOptions
    model: str
    devices: Mapping[str, Sequence[str]]
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class WarmedProgram:
    """The result for one target: the program or, without one, the error; what belongs to it."""

    target: str
    key: bytes
    program: CompiledProgram | None
    error: str
    trace: TraceCoverage
    package: TraceCoverage | None = None
    tuning: tuple[TuningCoverage, ...] | None = None


@dataclass(frozen=True, slots=True)
class GraphWarmer:
    """Warms graphs through one client; safe to use from several threads.

    Without a `signer` no traces are published.
    """

    client: FarmClient
    signer: Signer | None
    retry: Retry

    def warm(
        self, request: GraphRequest, on_target: Callable[[WarmedProgram], None]
    ) -> list[WarmedProgram]:
        """The programs of a graph in the order of its targets; reports each when it is there.

        Raises:
            StaleCaptureError: the trace must be captured again; `on_target` had all targets before.
        """
        message = graph_pb2.Graph.FromString(request.captured.graph)
        programs = _Programs(self, request, graph_from_proto(message))
        with spans.span("warm graph", request.traceparent):
            return programs.warm(on_target)


class _Programs:
    """The programs of one graph while they are warmed."""

    def __init__(self, warmer: GraphWarmer, request: GraphRequest, graph: Graph) -> None:
        self._client = warmer.client.for_model(request.model)
        self._signer = warmer.signer
        self._retry = warmer.retry
        self._request = request
        self._graph = graph
        self._keys = program_keys(graph, request.targets, request.options.pairs())
        self._found: dict[str, CompiledProgram] = {}
        self._errors: dict[str, KernelfarmError] = {}
        self._is_stale = False

    def warm(self, on_target: Callable[[WarmedProgram], None]) -> list[WarmedProgram]:
        if self._look_up_all():
            self._compile(self._missing(self._request.targets))
        results = []
        for target in self._request.targets:
            result = self._result(target)
            results.append(result)
            on_target(result)
        if self._is_stale:
            raise StaleCaptureError
        return results

    def _missing(self, targets: Sequence[str]) -> list[str]:
        return [target for target in targets if target not in self._found]

    def _look_up_all(self) -> bool:
        """Finds programs by their keys, without sending the graph; False if the farm is away."""
        for target in self._request.targets:
            try:
                self._look_up(target)
            except NotFoundError:
                continue
            except KernelfarmError as error:
                if is_temporary(error):  # all attempts failed, so others would fail too
                    self._errors.update(dict.fromkeys(self._missing(self._request.targets), error))
                    return False
                self._errors[target] = error
        return True

    def _look_up(self, target: str) -> None:
        self._found[target] = self._retry(lambda: self._client.lookup(self._keys[target]))

    def _compile(self, targets: Sequence[str]) -> None:
        """Asks for several targets at once, which then share one decomposition."""
        if not targets:
            return
        try:
            self._retry(lambda: self._compile_once(self._missing(targets)))
        except KernelfarmError as error:
            missing = self._missing(targets)
            if len(missing) > 1 and not is_temporary(error):
                for target in missing:  # to learn which of them fails
                    self._compile([target])
            else:
                self._errors.update(dict.fromkeys(missing, error))

    def _compile_once(self, targets: list[str]) -> None:
        if not targets:
            return
        self._client.compile(
            self._graph,
            targets,
            options=self._request.options,
            facts=facts_of(self._graph),
            keys=self._keys,
            warm_up=WarmUp(self._note),
        )

    def _note(self, program: CompiledProgram) -> None:
        self._found[program.target] = program

    def _result(self, target: str) -> WarmedProgram:
        key, program = self._keys[target], self._found.get(target)
        if program is None:
            error = self._errors[target]
            trace = TraceCoverage(state="none", reason="there is no program")
            return WarmedProgram(target, key, None, f"{error.reason}: {error}", trace)
        return WarmedProgram(
            target,
            key,
            program,
            "",
            self._trace(target, key),
            self._package(target, key),
            self._tuning(program),
        )

    def _tuning(self, program: CompiledProgram) -> tuple[TuningCoverage, ...] | None:
        """What the fleet chose for a program; warms the programs that it chose."""
        request = self._request
        tuned = TunedGraph(self._graph, request.captured.products, request.options)
        fleet = FleetChoices(self._client, self._retry, partial(self._chosen, program.target))
        devices = request.devices.get(program.target, ())
        found = (fleet.coverage(tuned, program, device) for device in devices)
        return tuple(stated for stated in found if stated is not None) or None

    def _chosen(self, target: str, key: bytes, options: CompileOptions) -> CompiledProgram:
        """The program with the fleet's choices, which the farm compiles if it is missing."""

        def compiled() -> CompiledProgram:
            (made,) = self._client.compile(
                self._graph,
                [target],
                options=options,
                facts=facts_of(self._graph),
                keys={target: key},
                warm_up=WarmUp(lambda _: None),
            )
            return made

        try:
            return self._retry(lambda: self._client.lookup(key))
        except NotFoundError:
            return self._retry(compiled)

    def _trace(self, target: str, key: bytes) -> TraceCoverage:
        """Whether the farm has the graph's trace for a target; publishes it if it is missing."""
        captured = self._request.captured
        if captured.trace is None:
            return TraceCoverage(state="none", reason=captured.no_trace)
        header, graph = parted(captured.trace.entry)
        if reason := self._why_none(header.parts, target):
            return TraceCoverage(state="none", reason=reason)
        parts = {**header.parts, "target": target}
        moved = replace(header, key=key.hex(), parts=parts)
        content = trace_content(key, self._graph, joined(moved.to_json(), graph))
        trace = PublishedTrace(trace_digest(parts), content, parts, self._request.model)
        return self._shared(trace, key, captured.trace.made_in)

    def _package(self, target: str, key: bytes) -> TraceCoverage | None:
        """Whether the farm has the case's package for a target; publishes it if it is missing."""
        captured = self._request.captured
        if captured.package is None:
            reason = captured.no_package
            return TraceCoverage(state="none", reason=reason) if reason else None
        header, _ = packages.parted(captured.package.entry)
        reason = self._why_none(header.parts, target)
        if not reason and "system" in header.parts and target != header.parts["target"]:
            reason = f"made on {header.parts['system']}: run the job on a machine with this GPU"
        if reason:
            return TraceCoverage(state="none", reason=reason)
        parts = {**header.parts, "target": target}
        entry = packages.retargeted(captured.package.entry, target)
        content = trace_content(key, self._graph, entry)
        package = PublishedTrace(
            trace_digest(parts), content, parts, self._request.model, (PACKAGE_TAG,)
        )
        return self._shared(package, key, captured.package.made_in)

    def _why_none(self, parts: Mapping[str, str], target: str) -> str:
        """Why this job cannot publish what it captured for a target; empty if it can."""
        if target_facts(target).vendor != target_facts(parts["target"]).vendor:
            device = self._request.captured.device
            return f"captured on {device}: run the job on a machine with this device"
        return _NO_KEY if self._signer is None else ""

    def _shared(self, trace: PublishedTrace, key: bytes, made_in: Epoch) -> TraceCoverage:
        try:
            reason = self._retry(lambda: self._publish(trace, key, made_in))
        except KernelfarmError as error:
            reason = f"{error.reason}: {error}"
        return TraceCoverage(
            state="missing" if reason else "present", digest=trace.digest.hex(), reason=reason
        )

    def _publish(self, trace: PublishedTrace, key: bytes, made_in: Epoch) -> str:
        """Publishes what the farm lacks; returns why it is still missing, or nothing."""
        signer = self._signer
        assert signer is not None
        answer = TraceClient(self._client).lookup(
            trace.digest, NO_FACTS, (), _TRACE_TIMEOUT_S, wants_program=False
        )
        if answer.trace is not None:
            found = checked_trace(self._client, answer.trace, trace.digest)
            return "" if found == key else f"the farm's trace names program {found.hex()}"
        outcome = publish_trace(self._client, signer, trace, made_in, _TRACE_TIMEOUT_S)
        if outcome != pb.PUT_TRACE_OUTCOME_STALE:
            return ""
        self._is_stale = True
        return "something that it depends on was invalidated after its capture"
