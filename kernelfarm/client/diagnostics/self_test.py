"""Compiles a small graph that no model has, to show that a farm works; needs no torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.dtypes import DType
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Graph, Input, Node, Ref, TensorType, contiguous_strides

_LARGEST_EXTENT = 4096


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The program of one target: what the cache answered, and the time from request to binaries.

    `outcome` is `miss`, `hit` or `merged`; `compiled` counts the kernels that workers compiled.
    """

    target: str
    outcome: str
    compiled: int
    is_stub: bool
    elapsed_s: float


def self_test(
    client: FarmClient, vendors: Sequence[str] = (), random: Random | None = None
) -> list[SelfTestResult]:
    """Compiles for one target of each vendor, and reads the binaries; signatures are checked.

    Without vendors: for every vendor of which a worker has reported. The extents of the graph are
    random numbers, so its kernels are not in the cache.

    Raises:
        UnavailableError: no worker of a vendor has reported, or the farm does not answer.
        KernelfarmError: the compilation failed; see `FarmClient.compile`.
    """
    targets = _targets(client, vendors)
    graph = _graph(random or Random())
    results = []
    for target in targets:
        began_s = time.monotonic()
        (program,) = client.compile(graph, [target])
        artifacts = [artifact for variants in program.kernels for artifact in variants]
        client.read_blobs([artifact.binary.sha256 for artifact in artifacts])
        results.append(
            SelfTestResult(
                target=target,
                outcome=program.outcome,
                compiled=program.codegen_jobs,
                is_stub=any(artifact.is_stub for artifact in artifacts),
                elapsed_s=time.monotonic() - began_s,
            )
        )
    return results


def _targets(client: FarmClient, vendors: Sequence[str]) -> list[str]:
    """One target of each vendor; that of each vendor which has reported, if none is named."""
    known: dict[str, str] = {}
    for capability in client.capabilities().targets:
        known.setdefault(capability.target.partition(":")[0], capability.target)
    missing = sorted(set(vendors) - known.keys())
    if missing or not known:
        raise UnavailableError(
            f"no worker of {', '.join(missing) or 'any vendor'} has reported to the farm; seen:"
            f" {', '.join(sorted(known)) or 'none'}; start the workers, or read their logs"
        )
    return [known[vendor] for vendor in vendors or sorted(known)]


def _graph(random: Random) -> Graph:
    """`softmax(relu(a + b))` over the last axis of two matrices with random extents."""
    extents = tuple(as_expr(random.randint(2, _LARGEST_EXTENT)) for _ in range(2))
    matrix = TensorType(DType.F32, extents, contiguous_strides(extents))
    steps = (
        ("aten.add.Tensor", (Ref(0), Ref(1))),
        ("aten.relu.default", (Ref(2),)),
        ("aten._softmax.default", (Ref(3), -1, False)),
    )
    nodes = tuple(
        Node(op, arguments, (), (2 + index,), (matrix,))
        for index, (op, arguments) in enumerate(steps)
    )
    inputs = (Input(0, matrix, "a"), Input(1, matrix, "b"))
    return Graph("aten", (), inputs, nodes, (Ref(4),), (matrix,))
