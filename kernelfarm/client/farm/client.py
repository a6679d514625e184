"""Calls of the farm's CompileService: one channel, deadlines, retries, verified responses."""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernelfarm import spans
from kernelfarm.client.counters import count_refusal
from kernelfarm.client.farm.call_retry import CallRetry
from kernelfarm.client.farm.channel import FarmChannel, stub_of
from kernelfarm.client.farm.checked_program import ExpectedProgram, checked_program
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.manifest_verifier import ManifestVerifier
from kernelfarm.client.farm.wait_budget import remaining_timeout
from kernelfarm.client.process.exit import pause
from kernelfarm.client.process.exported_spans import start_client_export
from kernelfarm.client.settings import ClientSettings
from kernelfarm.digest import program_keys
from kernelfarm.errors import (
    DeadlineError,
    FarmFullError,
    IntegrityError,
    KernelfarmError,
    MalformedMessageError,
    ManifestMismatchError,
    PoisonedBlobError,
    UnavailableError,
)
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.guards import NO_FACTS, CallerFacts
from kernelfarm.signing import Keyring
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.wire import graph_to_proto
from kernelfarm.wire.manifest import facts_to_proto, key_from_proto
from kernelfarm.wire.product_choice import node_choices_to_proto, product_choice_to_proto

if TYPE_CHECKING:
    import grpc

    from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub

MAX_BLOBS_IN_A_REQUEST = 4096
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0

_jitter = random.SystemRandom()
"""Not the global generator, which the user may have seeded."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage event of a compilation; `total` is 0 if the stage has no items."""

    stage: str
    target: str
    done: int
    total: int
    elapsed_s: float
    detail: str


OnProgress = Callable[[StageProgress], None]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A request before any user waits. `on_program` gets each program as soon as it is there.

    If a target fails, the programs of the other targets have been reported. A call that is repeated
    reports a program again.
    """

    on_program: Callable[[CompiledProgram], None]


Attempt = Callable[["grpc.Channel", float], ResultT]
"""A call over a channel with a timeout in seconds; it may be repeated."""


_DEFAULTS = CompileOptions()


class FarmClient:
    """Calls the farm; safe to use from several threads.

    `settings.timeout_s` limits each call, or all calls of one graph together; see
    `WaitBudget.charged`. All methods raise subclasses of `KernelfarmError` with the farm's message.
    A program that fails verification is refused (`IntegrityError`) and counted. `remembered_keys`
    is the file in which `ManifestVerifier` stores the keys of a farm without pinned keys.
    """

    def __init__(self, settings: ClientSettings, remembered_keys: Path | None = None) -> None:
        start_client_export()
        self.settings = settings
        self.verifier = ManifestVerifier(settings, self._public_keys, remembered_keys)
        self._peer = f"the farm at {settings.endpoint}"
        self._channel = FarmChannel(partial(_opened, settings), self._peer)

    def for_model(self, model: str) -> FarmClient:
        """This client, with another model in its requests; it shares the channel, do not close it.

        `model` is `id@revision`, or empty.
        """
        scoped = copy(self)
        scoped.settings = self.settings.changed(model=model)
        return scoped

    def connect(self, timeout_s: float = 1.0) -> bool:
        """True if the channel connects within the timeout; calls connect by themselves, too."""
        import grpc  # noqa: PLC0415 -- see `_opened`

        with self._channel.used() as channel:
            ready = grpc.channel_ready_future(channel)
            try:
                ready.result(timeout=timeout_s)
            except grpc.FutureTimeoutError:
                return False
            finally:
                ready.cancel()  # else it would check the channel five times a second
            return True

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @spans.in_span("Compile")
    def compile(  # noqa: PLR0913 (all but two have defaults)
        self,
        graph: Graph,
        targets: Sequence[str],
        *,
        options: CompileOptions = _DEFAULTS,
        on_progress: OnProgress | None = None,
        facts: CallerFacts = NO_FACTS,
        keys: Mapping[str, bytes] | None = None,
        warm_up: WarmUp | None = None,
    ) -> list[CompiledProgram]:
        """The programs of a graph, one for each target, in the order of the targets.

        `facts` must hold at every call of the programs. `keys` are the program keys by target, if
        the caller has computed them already. With `warm_up`, the farm serves the interactive
        requests of others first.

        Raises:
            IntegrityError: a program is not what its publisher made for this graph.
            CallerError: the farm refuses the graph or a target; the message says why.
            UnavailableError: no farm answers, or it lost a service; retry later.
            DeadlineError: the build took too long; the farm finishes it, so retry later.
        """
        request = pb.CompileRequest(
            request_id=uuid.uuid4().hex,
            graph=graph_to_proto(graph),
            targets=targets,
            priority=pb.PRIORITY_WARM_UP if warm_up else pb.PRIORITY_INTERACTIVE,
            options=pb.CompileOptions(
                deterministic=options.is_deterministic,
                fallback_random=options.fallback_random,
                products=product_choice_to_proto(options.products),
                product_choices=node_choices_to_proto(options.node_choices),
            ),
            model=self.settings.model,
            facts=facts_to_proto(facts),
            wants_signed=True,
        )
        known = keys or program_keys(graph, targets, options.pairs())
        expected = {
            known[t]: ExpectedProgram(self.settings.namespaces, known[t], t, facts) for t in targets
        }

        def attempt(channel: grpc.Channel, remaining_s: float) -> list[CompiledProgram]:
            events = _stub(channel).Compile(request, timeout=remaining_s)
            answers = _programs(events, on_progress)
            found: dict[str, CompiledProgram] = {}
            for answer in answers:
                program = self.checked(answer, expected)
                found[program.target] = program
                if warm_up is not None:
                    warm_up.on_program(program)
            missing = [target for target in targets if target not in found]
            if missing:
                raise MalformedMessageError(f"{self._peer} sent no program for {missing}")
            return [found[target] for target in targets]

        return self._retried(attempt)

    @spans.in_span("Lookup")
    def lookup(self, key: bytes) -> CompiledProgram:
        """A program by its key.

        Raises:
            NotFoundError: the farm's cache does not have it.
            IntegrityError: the program is not what its publisher made for this key.
        """
        request = pb.LookupRequest(key=key, model=self.settings.model, wants_signed=True)
        expected = {key: ExpectedProgram(self.settings.namespaces, key, target="")}

        def attempt(channel: grpc.Channel, remaining_s: float) -> CompiledProgram:
            reply = _stub(channel).Lookup(request, timeout=remaining_s)
            return self.checked(reply.program, expected)

        return self._retried(attempt)

    @spans.in_span("ReadBlobs")
    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Verified blobs by SHA-256.

        Raises:
            NotFoundError: the farm no longer has one; compile again.
            PoisonedBlobError: a blob does not have the requested digest; compile again.
        """
        unique = list(dict.fromkeys(digests))
        found: dict[bytes, bytes] = {}
        for first in range(0, len(unique), MAX_BLOBS_IN_A_REQUEST):
            part = unique[first : first + MAX_BLOBS_IN_A_REQUEST]
            found.update(self._retried(partial(self._read_batch, part)))
        return found

    @spans.in_span("GetCapabilities")
    def capabilities(self) -> pb.GetCapabilitiesResponse:
        """The farm's version, targets and public keys."""
        request = pb.GetCapabilitiesRequest()
        return self._retried(lambda channel, s: _stub(channel).GetCapabilities(request, timeout=s))

    def _public_keys(self) -> Keyring | None:
        capabilities = self.capabilities()
        return (
            Keyring(map(key_from_proto, capabilities.public_keys))
            if capabilities.is_signed
            else None
        )

    def checked(
        self, answer: pb.ProgramResult, expected: Mapping[bytes, ExpectedProgram]
    ) -> CompiledProgram:
        """The verified program of a response, which must be one of `expected`.

        Raises:
            IntegrityError: it is not what its publisher made for this key; counted.
            MalformedMessageError: the response is not signed, or is not a program.
        """
        try:
            expectation = expected.get(answer.key)
            if expectation is None:
                raise ManifestMismatchError(
                    f"{self._peer} sent program {answer.key.hex()[:16]}, which was not requested:"
                    " client and farm may have different versions; expected"
                    f" {' or '.join(key.hex()[:16] for key in expected)}"
                )
            return checked_program(answer, expectation, self.verifier.check)
        except IntegrityError as error:
            count_refusal("farm", error)
            raise

    def _read_batch(
        self, digests: list[bytes], channel: grpc.Channel, remaining_s: float
    ) -> dict[bytes, bytes]:
        buffers = [bytearray() for _ in digests]
        request = pb.ReadBlobsRequest(sha256=digests)
        for chunk in _stub(channel).ReadBlobs(request, timeout=remaining_s):
            if chunk.index >= len(buffers) or chunk.offset_bytes != len(buffers[chunk.index]):
                raise MalformedMessageError(f"{self._peer} sent blob chunks out of order")
            buffers[chunk.index] += chunk.data
        contents = {d: bytes(b) for d, b in zip(digests, buffers, strict=True)}
        for digest, content in contents.items():
            seen = hashlib.sha256(content).hexdigest()
            if seen != digest.hex():
                poisoned = PoisonedBlobError(
                    f"{self._peer} sent a blob of digest {seen}; expected {digest.hex()}"
                )
                count_refusal("farm", poisoned)
                raise poisoned
        return contents

    def asked(self, attempt: Attempt[ResultT], timeout_s: float) -> ResultT:
        """Makes a call; repeats it if it got no answer or a fork of this process ended it.

        Raises:
            KernelfarmError: the farm's error, or a timeout.
        """
        deadline = time.monotonic() + remaining_timeout(timeout_s)
        repeats = CallRetry(deadline)
        while True:
            pauses = self._channel.pauses
            try:
                with _translated_errors(self._peer), self._channel.used() as channel:
                    return attempt(channel, max(0.0, deadline - time.monotonic()))
            except KernelfarmError as error:
                if pauses == self._channel.pauses:
                    repeats.wait(error)

    def _retried(self, attempt: Attempt[ResultT]) -> ResultT:
        """Repeats a call until the deadline while the farm is full.

        A call without an answer fails after a few repetitions (`CallRetry`): a missing farm must
        not make an inference server wait.
        """
        deadline = time.monotonic() + remaining_timeout(self.settings.timeout_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise DeadlineError(
                    f"{self._peer}: no result within {self.settings.timeout_s} s; retry later"
                )
            try:
                return self.asked(attempt, remaining_s)
            except UnavailableError as error:
                # Not before the farm's retry time, and not all clients at the same time.
                wait_s = max(error.retry_after_s or 0, pause_s) * _jitter.uniform(1.0, 1.5)
                if not isinstance(error, FarmFullError) or wait_s > deadline - time.monotonic():
                    raise
            if pause(wait_s):
                raise UnavailableError(f"{self._peer} is full, and this process is ending")
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _opened(settings: ClientSettings) -> grpc.Channel:
    # gRPC takes as long to import as the rest of the client: not before the first channel.
    from kernelfarm.service.channels import open_blocking_channel  # noqa: PLC0415

    return open_blocking_channel(
        settings.endpoint,
        settings.tls(),
        settings.bearer(),
        may_be_clear=settings.allow_cleartext_token,
    )


def _stub(channel: grpc.Channel) -> CompileServiceStub:
    from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub  # noqa: PLC0415

    return stub_of(CompileServiceStub, channel)


def _translated_errors(peer: str) -> AbstractContextManager[None]:
    from kernelfarm.service.channels import translated_errors  # noqa: PLC0415

    return translated_errors(peer)


def _programs(
    events: Iterator[pb.CompileResponse], on_progress: OnProgress | None
) -> Iterator[pb.ProgramResult]:
    for event in events:
        if event.WhichOneof("event") == "program":
            yield event.program
        elif on_progress is not None:
            on_progress(_progress(event.stage))


def _progress(event: pb.StageEvent) -> StageProgress:
    elapsed_s = event.elapsed.ToNanoseconds() / 1e9
    return StageProgress(
        event.stage, event.target, event.done, event.total, elapsed_s, event.detail
    )
