"""The sizes that a trace was made with."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.sizes import traced_size


def test_the_size_of_a_trace_is_known_without_a_guard() -> None:
    found: list[int | None] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        *_, added = (n for n in gm.graph.nodes if n.op == "call_function")
        shape = added.meta["example_value"].shape
        assert [isinstance(size, int) for size in shape] == [False, False, True]
        guards = shape[0].node.shape_env.guards
        before = len(guards)
        found.extend(map(traced_size, shape))
        assert len(guards) == before
        return gm.forward

    x = torch.randn(7, 6, 5)
    torch._dynamo.mark_dynamic(x, [0, 1])
    torch._dynamo.reset()
    torch.compile(lambda x: torch.cat([x, x[:, 2:]], 1), backend=backend)(x)
    assert found == [7, 10, 5]


def test_a_size_that_depends_on_data_is_unknown() -> None:
    found: list[int | None] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        values = [n.meta.get("example_value") for n in gm.graph.nodes]
        *_, positions = (v for v in values if isinstance(v, torch.Tensor))
        found.append(traced_size(positions.shape[0]))
        return gm.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(torch.nonzero, backend=backend)(torch.tensor([0.0, 1.0, 2.0]))
    assert found == [None]
