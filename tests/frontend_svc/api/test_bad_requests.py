"""Invalid requests: each gets a status, a reason, and a message with what was seen and expected.

After all of them the service still serves. Messages about graphs: `tests/kernelfarm/wire`, `ir`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from kernelfarm.errors import KernelfarmError, MessageTooLargeError
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.calls import compile_at, refusal_of, stub_of
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.small_graphs import CPU, h_request


@pytest.fixture(scope="module", autouse=True)
def still_serving(farm: Farm) -> Iterator[None]:
    """After these tests the farm still compiles, and no child was restarted."""
    before = {name: child["restarts"] for name, child in farm.status()["children"].items()}
    yield
    assert compile_at(farm.endpoint, h_request(64, 128)).program.artifacts
    after = {name: child["restarts"] for name, child in farm.status()["children"].items()}
    assert after == before


def check(error: KernelfarmError, status: str, reason: str, *words: str) -> None:
    assert (error.status, error.reason) == (status, reason), error
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


def of_unknown_type(request: api.CompileRequest) -> None:
    request.graph.inputs[0].tensor.dtype = 77


def with_a_cycle(request: api.CompileRequest) -> None:
    request.graph.nodes[0].args[0].value = 4  # ceil of the sum that uses it


def of_another_shape(request: api.CompileRequest) -> None:
    request.graph.nodes[2].types[0].shape[1].constant = 7
    request.graph.nodes[2].types[0].strides[0].constant = 7


def of_another_dialect(request: api.CompileRequest) -> None:
    request.graph.dialect = "torchscript"


def nested_deeply(request: api.CompileRequest) -> None:
    argument = request.graph.nodes[3].args[1]
    for _ in range(60):
        argument = argument.list.items.add()


@pytest.mark.parametrize(
    ("change", "reason", "word"),
    [
        (of_unknown_type, "UNSUPPORTED_DTYPE", "77"),
        (with_a_cycle, "INVALID_GRAPH", "aten.ceil.default"),
        (of_another_shape, "INVALID_GRAPH", "aten.add.Tensor"),
        (of_another_dialect, "INVALID_GRAPH", "torchscript"),
        (nested_deeply, "MALFORMED_MESSAGE", "Graph message"),
    ],
)
def test_a_graph_with_a_fault_is_an_invalid_argument(
    change: Callable[[api.CompileRequest], None], reason: str, word: str, farm: Farm
) -> None:
    request = h_request()
    change(request)
    check(refusal_of(farm.endpoint, request), "INVALID_ARGUMENT", reason, word)


@pytest.mark.parametrize(
    "name", ["template.nibble_product", "template.flash_attention", "template.unknown"]
)
def test_an_operator_of_the_farm_s_own_templates_is_unknown_in_a_graph(
    name: str, farm: Farm
) -> None:
    request = h_request()
    request.graph.nodes[3].op = name
    error = refusal_of(farm.endpoint, request)
    check(error, "INVALID_ARGUMENT", "INVALID_GRAPH", f"node 3 ({name}): unknown operator")
    assert "expected an operator of the framework, as aten.mm.default" in str(error)


def test_an_operator_of_a_library_named_template_is_the_framework_s(farm: Farm) -> None:
    request = h_request()
    request.graph.nodes[3].op = "template.nibble_product.default"
    plan = compile_at(farm.endpoint, request).program.plan
    assert b"template.nibble_product.default" in plan.SerializeToString()


def test_an_unknown_target_is_refused_with_the_known_ones(farm: Farm) -> None:
    error = refusal_of(farm.endpoint, h_request(64, 128, "cpu:z80"))
    check(error, "INVALID_ARGUMENT", "UNKNOWN_TARGET", "cpu:z80", CPU)


def test_a_request_without_targets_is_refused(farm: Farm) -> None:
    request = h_request()
    del request.targets[:]
    check(refusal_of(farm.endpoint, request), "INVALID_ARGUMENT", "INVALID_REQUEST", "target")


def test_a_target_that_is_named_twice_is_refused(farm: Farm) -> None:
    error = refusal_of(farm.endpoint, h_request(64, 128, CPU, CPU))
    check(error, "INVALID_ARGUMENT", "INVALID_REQUEST", CPU, "twice")


def test_a_request_without_a_graph_is_refused(farm: Farm) -> None:
    error = refusal_of(farm.endpoint, api.CompileRequest(targets=[CPU]))
    check(error, "INVALID_ARGUMENT", "MALFORMED_MESSAGE", "graph")


def test_a_contract_version_of_the_future_is_refused(farm: Farm) -> None:
    request = h_request()
    request.graph.abi_version = 99
    error = refusal_of(farm.endpoint, request)
    check(error, "FAILED_PRECONDITION", "UNSUPPORTED_ABI_VERSION", "99", "1")


def test_a_graph_of_33_mib_is_too_large(farm: Farm) -> None:
    request = h_request()
    request.graph.locations.append("x" * (33 * 1024 * 1024))
    error = refusal_of(farm.endpoint, request)
    assert isinstance(error, MessageTooLargeError)
    check(error, "RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE", str(16 * 1024 * 1024), "3460")


def test_a_graph_of_too_many_nodes_is_refused_before_it_is_decoded(farm: Farm) -> None:
    request = h_request()
    request.graph.nodes.extend([request.graph.nodes[0]] * 50_000)
    error = refusal_of(farm.endpoint, request)
    check(error, "RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE", "50007", "50000")


def test_a_key_of_the_wrong_length_is_refused(farm: Farm) -> None:
    with stub_of(farm.endpoint) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Lookup(api.LookupRequest(key=b"short"), timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "5 bytes" in caught.value.details()


@pytest.mark.parametrize(
    "ask",
    [
        lambda stub: stub.Lookup(api.LookupRequest(key=bytes(32)), timeout=TIMEOUT_S),
        lambda stub: list(
            stub.ReadBlobs(api.ReadBlobsRequest(sha256=[bytes(32)]), timeout=TIMEOUT_S)
        ),
    ],
    ids=["lookup", "read_blobs"],
)
def test_a_program_or_blob_that_is_not_stored_is_not_found(
    farm: Farm, ask: Callable[[object], object]
) -> None:
    with stub_of(farm.endpoint) as stub, pytest.raises(grpc.RpcError) as caught:
        ask(stub)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "00000000" in caught.value.details()


def test_refused_graphs_leave_no_memory_in_the_frontend(farm: Farm) -> None:
    """At commit 3c2bd51 each kept 1.4 MB until the garbage collector ran."""
    request = h_request()
    size_bytes = request.graph.nodes[0].ByteSize()
    request.graph.nodes.extend([request.graph.nodes[0]] * (129_000 // size_bytes))
    (frontend,) = farm.pids("frontend")

    def memory_bytes() -> int:
        lines = Path(f"/proc/{frontend}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    for number in range(70):
        if number == 10:
            before = memory_bytes()
        request.graph.locations[:] = [str(number)]
        check(refusal_of(farm.endpoint, request), "INVALID_ARGUMENT", "INVALID_GRAPH", "a second")
    assert memory_bytes() - before < 40 * 2**20
