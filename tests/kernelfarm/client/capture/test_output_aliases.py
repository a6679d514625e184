"""Outputs that share memory with arguments, or with each other."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelfarm.client.capture.captured import CapturedGraph, ModuleOutput, OutputView
from kernelfarm.client.capture.graph import capture
from kernelfarm.ir.algebra.expr import as_expr


def exprs(*values: int) -> tuple:
    return tuple(map(as_expr, values))


def captured(function, *args: torch.Tensor, **options) -> CapturedGraph:
    return capture(make_fx(function, tracing_mode="fake")(*args), **options)


def test_an_argument_and_its_views_are_returned_without_the_graph():
    found = captured(lambda x, w: (x + 1, w, w.t()[1:]), torch.ones(2, 3), torch.ones(4, 5))
    assert len(found.graph.outputs) == 1
    assert found.module_outputs == (
        ModuleOutput(0),
        ModuleOutput(argument=1),
        ModuleOutput(argument=1, view=OutputView(exprs(4, 4), exprs(1, 5), as_expr(1))),
    )


def test_a_view_counts_from_its_argument_s_first_element():
    w = torch.ones(6, 5)[2:]
    found = captured(lambda x, w: (x + 1, w[1:]), torch.ones(2, 3), w)
    assert found.module_outputs[1].view == OutputView(exprs(3, 5), exprs(5, 1), as_expr(5))


def test_a_copy_of_an_argument_is_computed():
    found = captured(lambda x: (x.clone(), x.reshape(3, 2).contiguous()), torch.ones(2, 3).t())
    assert [output.argument for output in found.module_outputs] == [None, None]


def test_an_argument_that_is_written_is_computed():
    def function(x: torch.Tensor, w: torch.Tensor):
        old = w.t()
        w.copy_(x * 2)
        return x + 1, old

    found = captured(function, torch.ones(3, 3), torch.ones(3, 3))
    assert len(found.graph.updates) == 1
    assert [output.argument for output in found.module_outputs] == [None, None]


def test_a_view_of_another_type_is_computed():
    found = captured(lambda x: (x + 1, x.view(torch.int32)), torch.ones(2, 3))
    assert [output.argument for output in found.module_outputs] == [None, None]


def test_the_graph_has_every_output_if_arguments_are_to_be_copied():
    found = captured(lambda x: (x + 1, x, x.t()), torch.ones(2, 3), copies_arguments=True)
    assert len(found.graph.outputs) == 3
    assert found.module_outputs == tuple(ModuleOutput(number) for number in range(3))
