"""Calls of the farm's CacheService, for administrators and for watching clients; needs no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from kernelfarm.client.farm.call_retry import retried
from kernelfarm.client.farm.channel import close_channel, started_call
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.service.channels import open_blocking_channel, translated_errors
from kernelfarm.service.tls import ChannelTls
from kernelfarm.v1 import cache_service_pb2 as api
from kernelfarm.v1 import compile_service_pb2, manifest_pb2
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.wire import graph_to_proto

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_TIMEOUT_S = 30.0
# Dry runs and sweeps visit all entries.
_WALK_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch: drop the entries with one of the tags and an epoch below `epoch`.

    `is_flush` means: drop all entries. An event with neither tags nor flush confirms that the
    watcher has received every invalidation up to `epoch`. `resume_token` continues the watch after
    this event has been applied.
    """

    tags: tuple[str, ...]
    epoch: int
    incarnation: str
    is_flush: bool
    resume_token: str


class CacheAdmin:
    """Calls a farm's CacheService; methods raise `KernelfarmError` with the farm's own message."""

    def __init__(
        self,
        endpoint: str,
        token: str = "",
        tls: ChannelTls | None = None,
        *,
        allow_cleartext: bool = False,
    ) -> None:
        self._channel = open_blocking_channel(endpoint, tls, token, may_be_clear=allow_cleartext)
        self._stub = CacheServiceStub(self._channel)
        self._peer = f"the farm at {endpoint}"

    def close(self) -> None:
        """Closes the channel; another thread may be about to call it."""
        close_channel(self._channel)

    def __enter__(self) -> CacheAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def invalidate(
        self, tags: Sequence[str], *, dry_run: bool = False, reason: str = ""
    ) -> api.InvalidateResponse:
        """Makes entries with one of the tags stale; a dry run only counts them.

        Raises:
            PermissionDeniedError: the token is missing or wrong.
            CallerError: a tag does not follow the grammar of tags.
        """
        request = api.InvalidateRequest(tags=tags, dry_run=dry_run, reason=reason)
        timeout_s = _WALK_TIMEOUT_S if dry_run else _TIMEOUT_S
        return self._call(self._stub.Invalidate, request, timeout_s)

    def watch(self, resume_token: str = "") -> Iterator[WatchEvent]:
        """Invalidations after a resume token, until the farm or the caller ends the stream.

        Raises:
            UnavailableError: the connection is lost; watch again with the last token.
        """
        request = api.WatchInvalidationsRequest(resume_token=resume_token)
        with translated_errors(self._peer):
            call = started_call(lambda: self._stub.WatchInvalidations(request), self._channel)
            for event in call:
                yield WatchEvent(
                    tuple(event.tags),
                    event.epoch,
                    event.incarnation,
                    event.is_flush,
                    event.resume_token,
                )

    def explain_key(self, key: bytes) -> api.ExplainMissResponse:
        """The result of looking up a program's key, and its difference to the nearest entry."""
        request = api.ExplainMissRequest(key=key)
        return self._call(self._stub.ExplainMiss, request, _TIMEOUT_S)

    def explain_graph(
        self, graph: Graph, target: str, *, is_deterministic: bool = False, model: str = ""
    ) -> api.ExplainMissResponse:
        """The result of looking up a graph's program, and its difference to the nearest entry."""
        request = api.ExplainMissRequest(
            graph=graph_to_proto(graph),
            target=target,
            options=compile_service_pb2.CompileOptions(deterministic=is_deterministic),
            model=model,
        )
        return self._call(self._stub.ExplainMiss, request, _TIMEOUT_S)

    def usage(self, tenant: str = "") -> api.GetUsageResponse:
        """The usage and counters of a tenant; of the caller's own if `tenant` is empty.

        Raises:
            PermissionDeniedError: another tenant's usage requires the role administrator.
            NotFoundError: there is no such tenant.
        """
        request = api.GetUsageRequest(tenant=tenant)
        return self._call(self._stub.GetUsage, request, _TIMEOUT_S)

    def sweep(self) -> api.SweepResponse:
        """Deletes stale entries and unreferenced blobs.

        Raises:
            PermissionDeniedError: the token is missing or wrong.
            FarmFullError: another sweep is running.
        """
        return self._call(self._stub.Sweep, api.SweepRequest(), _WALK_TIMEOUT_S)

    def import_program(self, request: api.ImportProgramRequest) -> api.ImportProgramResponse:
        """Imports a program of another farm, or returns which of its blobs are missing.

        Raises:
            PermissionDeniedError: the token is missing or wrong.
            KernelfarmError: the farm refuses the program; the message says why.
        """
        return self._call(self._stub.ImportProgram, request, _TIMEOUT_S)

    def import_tuning(self, record: manifest_pb2.SignedVariant) -> int:
        """Imports a tuning record of another farm; returns how many reports were added.

        Raises:
            PermissionDeniedError: the token is missing or wrong.
            KernelfarmError: the farm refuses the record; the message says why.
        """
        request = api.ImportTuningRequest(record=record)
        return self._call(self._stub.ImportTuning, request, _TIMEOUT_S).added

    def _call(
        self,
        call: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        timeout_s: float,
    ) -> ResponseT:
        ends_s = time.monotonic() + timeout_s

        def ask() -> ResponseT:
            with translated_errors(self._peer):
                return call(request, timeout=max(0.0, ends_s - time.monotonic()))

        return retried(ask, timeout_s)
