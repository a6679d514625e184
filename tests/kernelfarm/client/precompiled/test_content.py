"""The bytes in a precompiled package: what they hold, and which are refused."""

from __future__ import annotations

import copy
import io
import json
import pickle
from dataclasses import replace

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.disk.files import sealed, unsealed
from kernelfarm.client.precompiled.artifacts import GraphArtifact, SerializableGraph
from kernelfarm.client.precompiled.content import PrecompiledGraph
from kernelfarm.client.runtime.captured_graph import CapturedGraphRunner
from kernelfarm.client.traces.entry import from_bytes
from kernelfarm.errors import KernelfarmError, MalformedMessageError, UnsupportedVersionError
from tests.support.like_eager import numbers


def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A product, a softmax, an input that is written, and a view of an input."""
    turned = x.t()
    y.add_(1)
    return (x @ y).softmax(-1) + torch.tensor([0.5]), turned


class Projection(torch.nn.Module):
    """A product with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product's sines."""
        return self.weights(x).sin()


@pytest.fixture
def package(endpoint: str, fresh_backend: None) -> bytes:
    """What `aot_compile` saves for `function`."""
    with torch.no_grad():
        compiled = torch.compile(function, backend="kernelfarm", fullgraph=True)
        made = compiled.aot_compile(((numbers(3, 4), numbers(4, 7)), {}))
    graph = made._artifacts.compiled_fn
    assert isinstance(graph, SerializableGraph)
    return type(made).serialize(made).serialized_data


def content_of(package: bytes) -> bytes:
    loaded = torch.compiler.load_compiled_function(io.BytesIO(package))
    content: bytes = loaded._artifacts.compiled_fn.content
    return content


def test_a_package_runs_as_eager_does(package: bytes) -> None:
    loaded = torch.compiler.load_compiled_function(io.BytesIO(package))
    with torch.no_grad():
        args, expected = (numbers(3, 4), numbers(4, 7)), (numbers(3, 4), numbers(4, 7))
        torch.testing.assert_close(loaded(*args), function(*expected))
        torch.testing.assert_close(args, expected)


def test_a_package_knows_the_weights_that_a_recording_reads_in_place(
    endpoint: str, fresh_backend: None
) -> None:
    model, x = Projection(), numbers(2, 4)
    with torch.no_grad():
        compiled = torch.compile(
            model, backend="kernelfarm", mode="reduce-overhead", fullgraph=True
        )
        made = compiled.forward.aot_compile(((x,), {}))
        package = type(made).serialize(made).serialized_data
        graph = PrecompiledGraph.from_bytes(content_of(package))
        assert graph.stated == {"cuda_graphs": True}
        assert graph.static == (1, 2)  # the inputs are in the order of their uses: x, weight, bias
        counters.reset()
        loaded = torch.compiler.load_compiled_function(io.BytesIO(package))
        torch.testing.assert_close(loaded(model, x), model(x))
    assert counters.snapshot()["cuda_graphs.not_recorded.device"] == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_for_a_package_takes_one_run(
    dynamic: bool, endpoint: str, fresh_backend: None
) -> None:
    model, x = Projection(), numbers(5, 4)  # no other test has stored its trace
    counters.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="kernelfarm", fullgraph=True, dynamic=dynamic)
        made = compiled.forward.aot_compile(((x,), {}))
        package = type(made).serialize(made).serialized_data
        found = counters.snapshot()
        assert (found["traced.short"], found["precompiled.made"]) == (1, 1)
        assert not any(name.startswith("traced.long") for name in found)
        loaded = torch.compiler.load_compiled_function(io.BytesIO(package))
        torch.testing.assert_close(loaded(model, x), model(x))


def test_the_trace_in_a_package_runs_eager(package: bytes) -> None:
    graph = PrecompiledGraph.from_bytes(content_of(package))
    run = CapturedGraphRunner(from_bytes(graph.trace).captured(torch.device("cpu")))
    args, expected = [numbers(3, 4), numbers(4, 7)], [numbers(3, 4), numbers(4, 7)]
    found = run(args if graph.positions is None else [args[i] for i in graph.positions])
    torch.testing.assert_close(found[0], function(*expected)[0])
    torch.testing.assert_close(args, expected)


def test_bytes_that_are_no_graph_are_refused(package: bytes) -> None:
    content = content_of(package)
    for position in range(0, len(content), 7):
        with pytest.raises(MalformedMessageError):
            PrecompiledGraph.from_bytes(content[:position])
    for name, value in {
        "device": "meta",
        "positions": [0, 0],
        "static": [-1],
        "stated": {"namespace": "other"},
        "is_deterministic": 1,
        "products": ["own"],
        "version": None,
        "more": 1,
    }.items():
        with pytest.raises(MalformedMessageError, match="no graph of kernelfarm"):
            PrecompiledGraph.from_bytes(changed(content, **{name: value}))


def test_a_graph_of_another_version_is_refused_while_its_package_is_read(package: bytes) -> None:
    """PyTorch then traces the model again."""
    graph = PrecompiledGraph.from_bytes(content_of(package))
    older = replace(graph, version="capture 1 of 1, torch 2.0").to_bytes()
    with pytest.raises(UnsupportedVersionError, match=r"torch 2\.0; expected"):
        PrecompiledGraph.from_bytes(older)
    artifact = GraphArtifact("__compiled_fn_1", content_of(package))
    assert pickle.loads(pickle.dumps(artifact)) == copy.deepcopy(artifact) == artifact
    with pytest.raises(KernelfarmError):
        pickle.loads(pickle.dumps(GraphArtifact("__compiled_fn_1", older)))


def changed(content: bytes, **changes: object) -> bytes:
    """The content with other fields in its header."""
    rest = unsealed(content)
    length = int.from_bytes(rest[:8], "little")
    header = json.dumps({**json.loads(rest[8 : 8 + length]), **changes}).encode()
    return sealed(len(header).to_bytes(8, "little") + header + rest[8 + length :])
