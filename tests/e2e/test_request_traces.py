"""One trace from a client's call through every process that serves it, at a real OTLP endpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.otlp_endpoint import OtlpEndpoint, ReceivedSpan, otlp_endpoint

pytestmark = pytest.mark.slow  # a farm of its own

CLIENT = """
import torch
import kernelfarm.client.torch_backend
model = torch.compile(lambda a: torch.softmax(a * 3.0 + 0.5, -1).sum(0), backend="kernelfarm")
model(torch.ones(4, 40))
"""

FORK = """
import os
child = os.fork()
torch.compile(lambda a: torch.exp(a * 2.0).sum(0), backend="kernelfarm")(torch.ones(5, 8))
if child == 0:
    from kernelfarm import spans
    spans.end_export()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""

PARENTS = {
    "Compile": "compile graph",
    "kernelfarm.v1.CompileService/Compile": "Compile",
    "import": "kernelfarm.v1.CompileService/Compile",
    "work process: import": "import",
    "lookup": "kernelfarm.v1.CompileService/Compile",
    "build program": "kernelfarm.v1.CompileService/Compile",
    "decompose": "build program",
    "work process: decompose": "decompose",
    "optimize": "build program",
    "kernelfarm.internal.v1.OptimizerService/Optimize": "optimize",
    "work process: optimize": "kernelfarm.internal.v1.OptimizerService/Optimize",
    "codegen": "build program",
    "kernelfarm.internal.v1.CodegenService/BuildKernels": "codegen",
    "kernel": "kernelfarm.internal.v1.CodegenService/BuildKernels",
    "queue": "kernel",
    "job": "queue",
    "compile": "job",
    "publish kernel": "job",
    "publish": "build program",
    "ReadBlobs": "compile graph",
}
"""Each stage of a compilation, and the span that it belongs to."""

SERVICES = {
    "compile graph": "client",
    "build program": "frontend",
    "work process: optimize": "optimizer",
    "queue": "codegen",
    "compile": "worker-cpu",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[OtlpEndpoint]:
    with otlp_endpoint() as started:
        yield started


@pytest.fixture(scope="module")
def farm(endpoint: OtlpEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with running_farm(tmp_path_factory.mktemp("farm"), "cpu", **endpoint.environment) as started:
        yield started


def test_one_trace_has_every_stage_under_its_parent(
    farm: Farm, endpoint: OtlpEndpoint, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **endpoint.environment,
        "KERNELFARM_ENDPOINT": farm.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(tmp_path),
        "KERNELFARM_MODE": "strict",
    }
    subprocess.run([sys.executable, "-c", CLIENT], env=environment, check=True, timeout=TIMEOUT_S)

    def trace() -> list[ReceivedSpan]:
        spans = endpoint.spans()
        roots = [span for span in spans if span.name == "compile graph"]
        return [span for span in spans if roots and span.trace_id == roots[0].trace_id]

    expected = {*PARENTS, *PARENTS.values()}
    wait_until(lambda: expected <= {span.name for span in trace()}, 30, "every span")
    by_id = {span.span_id: span for span in trace()}
    for span in trace():
        if span.name in PARENTS:
            assert by_id[span.parent_id].name == PARENTS[span.name]
        if span.name in SERVICES:
            assert span.service == SERVICES[span.name]
    roots = [span.name for span in trace() if not span.parent_id]
    assert roots == ["compile graph"]
    trace_id = trace()[0].trace_id
    for process in ("frontend", "codegen", "optimizer", "worker-cpu-0"):
        lines = [json.loads(line) for line in farm.log(process).splitlines()]
        assert any(line.get("trace_id") == trace_id for line in lines), process


def test_a_forked_client_exports_its_spans_too(
    farm: Farm, endpoint: OtlpEndpoint, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **endpoint.environment,
        "KERNELFARM_ENDPOINT": farm.endpoint,
        "KERNELFARM_DISK_CACHE_BYTES": "0",
        "OTEL_SERVICE_NAME": "forking",
    }
    seen = {span.span_id for span in endpoint.spans()}
    program = CLIENT + FORK
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=TIMEOUT_S)

    def roots() -> list[ReceivedSpan]:
        return [
            span
            for span in endpoint.spans()
            if span.name == "compile graph" and span.span_id not in seen
        ]

    wait_until(lambda: len(roots()) == 3, 30, "the spans of parent, child and parent")


def lookup_error(farm: Farm, *metadata: tuple[str, str]) -> grpc.RpcError:
    with grpc.insecure_channel(farm.endpoint) as channel:
        call = channel.unary_unary(
            "/kernelfarm.v1.CompileService/Lookup", api.LookupRequest.SerializeToString, None
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(api.LookupRequest(key=bytes(32)), metadata=metadata, timeout=TIMEOUT_S)
        return caught.value


def notes(error: grpc.RpcError) -> dict[str, str]:
    found = error_from_rpc(error).__notes__
    return dict(note.split(": ", 1) for note in found)


def test_an_error_names_the_trace_of_its_caller(farm: Farm, endpoint: OtlpEndpoint) -> None:
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    error = lookup_error(farm, ("traceparent", f"00-{trace_id}-{span_id}-01"))
    assert notes(error)["trace id"] == trace_id
    wait_until(lambda: any(span.trace_id == trace_id for span in endpoint.spans()), 30, "the span")
    (span,) = (s for s in endpoint.spans() if s.trace_id == trace_id and s.service == "frontend")
    assert span.parent_id == span_id
    assert span.is_error
    assert span.attributes["rpc.grpc.status"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x" * 4000,
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "g" * 32 + "-" + "1" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
        "00-" + "1" * 32 + "-" + "1" * 16 + "-01" + "-x" * 100,
    ],
    ids=["empty", "long", "zero", "no hex", "no version", "appended"],
)
def test_a_header_that_is_none_begins_a_trace_of_its_own(farm: Farm, header: str) -> None:
    trace_id = notes(lookup_error(farm, ("traceparent", header)))["trace id"]
    assert len(trace_id) == 32
    assert trace_id not in header
