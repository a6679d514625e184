"""The value of `torch.compiler.is_exporting()` in models, under every version of torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.support.traced_graphs import traced_one


class _Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() if torch.compiler.is_exporting() else x.cos()


def test_a_model_that_is_compiled_is_not_being_exported() -> None:
    captured = traced_one(_Asks(), torch.ones(3))
    assert [str(node.op) for node in captured.graph.nodes] == ["aten.cos.default"]


def test_a_model_that_is_exported_reads_true() -> None:
    exported = torch.export.export(_Asks(), (torch.ones(3),), strict=True)
    called = exported.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    assert len(called) == 1
