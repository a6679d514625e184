"""A real OTLP endpoint: the gRPC service to which OpenTelemetry exports spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as api
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was exported; ids are hex, and the parent of a root is empty.

    Times are in nanoseconds since 1970.
    """

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    is_error: bool
    began_ns: int
    ended_ns: int

    @property
    def began_s(self) -> float:
        """Its beginning in seconds since 1970."""
        return self.began_ns / 1e9

    @property
    def ended_s(self) -> float:
        """Its end in seconds since 1970."""
        return self.ended_ns / 1e9


@dataclass
class OtlpEndpoint(services.TraceServiceServicer):
    """The spans that were received so far."""

    url: str = ""
    _spans: list[ReceivedSpan] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def Export(  # noqa: N802
        self, request: api.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> api.ExportTraceServiceResponse:
        with self._lock:
            self._spans.extend(_received(request))
        return api.ExportTraceServiceResponse()

    def spans(self) -> list[ReceivedSpan]:
        """All spans so far."""
        with self._lock:
            return list(self._spans)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes that export here soon after each span."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}


def _received(request: api.ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        facts = {f.key: f.value.string_value for f in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    facts["service.name"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    {f.key: f.value.string_value for f in span.attributes},
                    is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                )


@contextmanager
def otlp_endpoint() -> Iterator[OtlpEndpoint]:
    """An endpoint on loopback."""
    endpoint = OtlpEndpoint()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services.add_TraceServiceServicer_to_server(endpoint, server)
    endpoint.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield endpoint
    finally:
        server.stop(None).wait()
