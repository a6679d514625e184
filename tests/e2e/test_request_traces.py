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
from tests.support.source_code import ROOT

pytestmark = pytest.mark.slow  # a farm of its own, with a worker for each vendor

CLIENT = """
import torch
import kernelfarm.client.torch_backend
model = torch.compile(lambda a: torch.softmax(a * 3.0 + 0.5, -1).sum(0), backend="kernelfarm")
model(torch.ones(4, 40))
"""

SWAP = """
import time
import torch
from kernelfarm.client import counters
model = torch.compile(lambda a: torch.tanh(a - 0.25).sum(0), backend="kernelfarm", mode="swap")
ends_s = time.monotonic() + 60
while not counters.snapshot().get("runner.programs_replaced"):
    assert time.monotonic() < ends_s, "the program did not arrive"
    model(torch.ones(4, 40))
    time.sleep(0.02)
"""

WARMED = """
import torch
def small():
    model = torch.nn.Sequential(torch.nn.Linear(40, 8), torch.nn.Softmax(-1))
    return model.eval(), (torch.ones(4, 40),)
"""

MANIFEST = """
format: 1
targets: ["cpu:x86-64-v3", "cuda:sm_90a", "rocm:gfx942", "ascend:910b"]
models:
  - name: small
    entry: warmed:small
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
    "stage: llir": "compile",
    "stage: llir_opt": "compile",
    "stage: asm": "compile",
    "stage: object": "compile",
    "stage: so": "compile",
}
"""Each stage of a compilation, and the span that it belongs to."""

STAGES = {
    "worker-cpu": ["llir", "llir_opt", "asm", "object", "so"],
    "worker-cuda": ["triton", "parse", "ttir", "ttgir", "llir", "ptx", "cubin"],
    "worker-rocm": ["triton", "parse", "ttir", "ttgir", "llir", "amdgcn", "hsaco"],
    "worker-ascend": ["triton", "parse", "ttir", "linalg", "kernel.o"],
}
"""The stages of each vendor's compilations, in their order."""

CLOCKS_DIFFER_NS = 10_000_000
"""Spans begin and end by the clock of the day, which may be adjusted meanwhile."""

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
    vendors = "cpu,cuda,rocm,ascend"
    with running_farm(tmp_path_factory.mktemp("farm"), vendors, **endpoint.environment) as started:
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
        records = (line for line in farm.log(process).splitlines() if line.startswith("{"))
        lines = [json.loads(line) for line in records]
        assert any(line.get("trace_id") == trace_id for line in lines), process


def test_a_program_that_is_swapped_in_belongs_to_the_trace_of_its_graph(
    farm: Farm, endpoint: OtlpEndpoint, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **endpoint.environment,
        "KERNELFARM_ENDPOINT": farm.endpoint,
        "KERNELFARM_DISK_CACHE_DIR": str(tmp_path),
    }
    before = {span.trace_id for span in endpoint.spans()}
    subprocess.run([sys.executable, "-c", SWAP], env=environment, check=True, timeout=TIMEOUT_S)

    def of_client() -> dict[str, ReceivedSpan]:
        found = (s for s in endpoint.spans() if s.trace_id not in before and s.service == "client")
        return {span.name: span for span in found}

    wait_until(lambda: {"compile graph", "swap in", "Compile"} <= of_client().keys(), 30, "spans")
    found = of_client()
    assert not found["compile graph"].parent_id
    assert found["swap in"].parent_id == found["compile graph"].span_id
    assert found["Compile"].parent_id == found["swap in"].span_id


def test_a_warmed_graph_has_one_trace_with_the_stages_of_every_vendor(
    farm: Farm, endpoint: OtlpEndpoint, tmp_path: Path
) -> None:
    (tmp_path / "warmed.py").write_text(WARMED)
    (tmp_path / "m.yaml").write_text(MANIFEST)
    environment = {
        **os.environ,
        **endpoint.environment,
        "KERNELFARM_ENDPOINT": farm.endpoint,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
    }
    command = [sys.executable, "-m", "kernelfarm.cli", "warm", "m.yaml"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=TIMEOUT_S)

    def trace() -> list[ReceivedSpan]:
        spans = endpoint.spans()
        ids = {span.trace_id for span in spans if span.name == "capture case"}
        return [span for span in spans if span.trace_id in ids]

    expected = {(vendor, f"stage: {name}") for vendor in STAGES for name in STAGES[vendor]}
    wait_until(lambda: expected <= {(s.service, s.name) for s in trace()}, 30, "every stage")
    by_id = {span.span_id: span for span in trace()}
    assert [span.name for span in by_id.values() if not span.parent_id] == ["capture case"]
    for span in by_id.values():
        if span.name == "Compile":
            assert by_id[by_id[span.parent_id].parent_id].name == "capture case"
        if span.name.startswith("stage: "):
            compilation = by_id[span.parent_id]
            assert (compilation.name, compilation.service) == ("compile", span.service)
            assert compilation.began_ns - CLOCKS_DIFFER_NS <= span.began_ns <= span.ended_ns
            assert span.ended_ns <= compilation.ended_ns + CLOCKS_DIFFER_NS
    for vendor, names in STAGES.items():
        assert stages_of_one_compilation(by_id, vendor) == names


def stages_of_one_compilation(spans: dict[str, ReceivedSpan], vendor: str) -> list[str]:
    """The different stages of a worker's first compilation, in the order of their beginnings."""
    first = min(
        (s for s in spans.values() if (s.service, s.name) == (vendor, "compile")),
        key=lambda span: span.began_ns,
    )
    own = [s for s in spans.values() if s.parent_id == first.span_id]
    names = [s.name.removeprefix("stage: ") for s in sorted(own, key=lambda s: s.began_ns)]
    return list(dict.fromkeys(names))


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
