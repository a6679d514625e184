"""Latency of hits for clients that send their whole graph: the first and later requests."""

from __future__ import annotations

import statistics
import time

import grpc

from frontend_svc.api.requests import options_of
from kernelfarm.digest import program_keys
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.wire import graph_to_proto
from tests.support.compile_steps import TARGET, captured_layer, repeated
from tests.support.gateways import Bench, publish_under, running_gateways

LAYERS = (2, 40, 180)
_COMPILE = "/kernelfarm.v1.CompileService/Compile"
_CONTENT_BYTES = 4 * 1024


async def time_graphs(bench: Bench, rounds: int) -> list[str]:
    """A Markdown table for graphs of some layers of a Llama, with published programs."""
    layer = captured_layer()
    lines = ["| nodes | request KiB | first hit ms | later hits ms |", "|---:|---:|---:|---:|"]
    with running_gateways(bench) as (address, _):
        for layers in LAYERS:
            graph = repeated(layer, layers)
            options = api.CompileOptions()
            key = program_keys(graph, (TARGET,), options_of(options).key_pairs())[TARGET]
            await publish_under(bench, [key], _CONTENT_BYTES)
            request = api.CompileRequest(
                graph=graph_to_proto(graph), targets=[TARGET], options=options, wants_signed=True
            ).SerializeToString()
            first_s, *later_s = [_timed(address, request, key) for _ in range(1 + rounds)]
            lines.append(
                f"| {len(graph.nodes):,} | {len(request) / 1024:.0f} | {1e3 * first_s:.1f} |"
                f" {1e3 * statistics.median(later_s):.1f} |"
            )
    return lines


def _timed(address: str, request: bytes, key: bytes) -> float:
    """Seconds of one call on an open connection.

    Raises:
        RuntimeError: the response is no hit.
    """
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(30)
        call: grpc.UnaryStreamMultiCallable[bytes, api.CompileResponse] = channel.unary_stream(
            _COMPILE, response_deserializer=api.CompileResponse.FromString
        )
        began_s = time.perf_counter()
        *_, last = call(request, timeout=60)
        taken_s = time.perf_counter() - began_s
    if last.program.key != key or last.program.outcome != api.CACHE_OUTCOME_HIT:
        raise RuntimeError("a published program was not found")
    return taken_s
