"""The way to the farm: one channel, deadlines, retries of what is idempotent, checked digests."""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc

from kernelfarm.client.found_program import FoundProgram, found_program
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import DeadlineError, MalformedMessageError, UnavailableError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.service.channels import channel_options, translated_errors
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from kernelfarm.wire import graph_to_proto

MAX_BLOBS_IN_A_REQUEST = 4096
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage event of a compilation; `total` is 0 where a stage has no items."""

    stage: str
    target: str
    done: int
    total: int
    elapsed_s: float
    detail: str


OnProgress = Callable[[StageProgress], None]


class FarmClient:
    """Calls the farm; safe to use from several threads. `settings.timeout_s` bounds each call.

    All methods raise `KernelfarmError` subclasses with the farm's own message.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._channel = grpc.insecure_channel(settings.endpoint, options=channel_options())
        self._stub = CompileServiceStub(self._channel)
        self._peer = f"the farm at {settings.endpoint}"

    def connect(self, timeout_s: float = 1.0) -> bool:
        """True if the farm answers within the time; calls connect by themselves anyway."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            return False
        return True

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(
        self,
        graph: Graph,
        targets: Sequence[str],
        *,
        is_deterministic: bool = False,
        on_progress: OnProgress | None = None,
    ) -> list[FoundProgram]:
        """The programs of a graph, one for each target, in the order of the targets.

        Raises:
            CallerError: the farm refuses the graph or a target; the message says why.
            UnavailableError: no farm answers there, or it lost a room; retry later.
            DeadlineError: not ready in time; the farm goes on, so a later call finds the result.
        """
        request = pb.CompileRequest(
            request_id=uuid.uuid4().hex,
            graph=graph_to_proto(graph),
            targets=targets,
            priority=pb.PRIORITY_INTERACTIVE,
            options=pb.CompileOptions(deterministic=is_deterministic),
        )

        def attempt(remaining_s: float) -> list[FoundProgram]:
            events = self._stub.Compile(request, timeout=remaining_s)
            found = {p.target: p for p in _programs(events, on_progress)}
            missing = [target for target in targets if target not in found]
            if missing:
                raise MalformedMessageError(f"{self._peer} sent no program for {missing}")
            return [found[target] for target in targets]

        return self._retried(attempt)

    def lookup(self, key: bytes) -> FoundProgram:
        """A program by its key.

        Raises:
            NotFoundError: the farm's cache does not hold it.
        """

        def attempt(remaining_s: float) -> FoundProgram:
            reply = self._stub.Lookup(pb.LookupRequest(key=key), timeout=remaining_s)
            return found_program(reply.program)

        return self._retried(attempt)

    def read_blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Contents by SHA-256; every content was checked against its digest.

        Raises:
            NotFoundError: the farm no longer holds one; compile again.
            MalformedMessageError: a content has another digest than asked for.
        """
        wanted = list(dict.fromkeys(digests))
        found: dict[bytes, bytes] = {}
        for first in range(0, len(wanted), MAX_BLOBS_IN_A_REQUEST):
            part = wanted[first : first + MAX_BLOBS_IN_A_REQUEST]
            found.update(self._retried(partial(self._read_part, part)))
        return found

    def capabilities(self) -> pb.GetCapabilitiesResponse:
        """What the farm can do."""
        request = pb.GetCapabilitiesRequest()
        return self._retried(lambda s: self._stub.GetCapabilities(request, timeout=s))

    def _read_part(self, digests: list[bytes], remaining_s: float) -> dict[bytes, bytes]:
        buffers = [bytearray() for _ in digests]
        request = pb.ReadBlobsRequest(sha256=digests)
        for chunk in self._stub.ReadBlobs(request, timeout=remaining_s):
            if chunk.index >= len(buffers) or chunk.offset_bytes != len(buffers[chunk.index]):
                raise MalformedMessageError(f"{self._peer} sent blob chunks out of order")
            buffers[chunk.index] += chunk.data
        contents = {d: bytes(b) for d, b in zip(digests, buffers, strict=True)}
        for digest, content in contents.items():
            seen = hashlib.sha256(content).hexdigest()
            if seen != digest.hex():
                raise MalformedMessageError(
                    f"{self._peer} sent a blob of digest {seen}; expected {digest.hex()}"
                )
        return contents

    def _retried(self, attempt: Callable[[float], ResultT]) -> ResultT:
        """Repeats a call while the farm says that it is full, until the deadline.

        What does not connect is repeated a few times by gRPC itself and then fails: a missing farm
        must not make an inference server wait.
        """
        deadline = time.monotonic() + self.settings.timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise DeadlineError(f"{self._peer}: nothing within {self.settings.timeout_s} s")
            try:
                with translated_errors(self._peer):
                    return attempt(remaining_s)
            except UnavailableError as error:
                wait_s = max(error.retry_after_s or 0, pause_s) * random.uniform(0.8, 1.2)
                if error.reason != "FARM_FULL" or wait_s > deadline - time.monotonic():
                    raise
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _programs(
    events: Iterator[pb.CompileResponse], on_progress: OnProgress | None
) -> Iterator[FoundProgram]:
    for event in events:
        if event.WhichOneof("event") == "program":
            yield found_program(event.program)
        elif on_progress is not None:
            on_progress(_progress(event.stage))


def _progress(event: pb.StageEvent) -> StageProgress:
    elapsed_s = event.elapsed.ToNanoseconds() / 1e9
    return StageProgress(
        event.stage, event.target, event.done, event.total, elapsed_s, event.detail
    )
