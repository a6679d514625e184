"""Real captured graphs decompose, and their Prims equal eager."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from examples import real_inputs
from examples.real_inputs import g, h
from frontend_svc.decompose.report import NodeOutcome
from frontend_svc.operators import extern_group_of
from kernelfarm.ir.verify import verify_graph
from tests.support.captured_graphs import Compiled, prim_names


def f(x: torch.Tensor) -> torch.Tensor:
    """As in the real inputs, with the same random numbers in each run."""
    a = x * 2
    b = a + torch.from_numpy(np.random.RandomState(0).randn(5))
    return b.sin().sin() if b.sum() > 0 else b.cos().cos()


@pytest.fixture(scope="module")
def llama() -> Compiled:
    source = real_inputs.llama()
    return Compiled(source.model, *source.args)


@pytest.fixture(scope="module")
def bert() -> Compiled:
    source = real_inputs.bert()
    ids, mask = source.args
    mask[0, 50:] = 0
    return Compiled(source.model, ids, mask)


def assert_equals_eager(program: Compiled, bound: float) -> None:
    torch.testing.assert_close(program.result, program.eager, rtol=bound, atol=bound)


def is_contraction(operator: str) -> bool:
    group = extern_group_of(operator)
    return group is not None and group.is_contraction


def externs(program: Compiled) -> list[str]:
    (lowered,) = program.lowered
    return [str(node.attr("op")) for node in lowered.graph.nodes if node.op == "extern"]


def test_h_equals_eager() -> None:
    program = Compiled(h, torch.randn(32, 128), torch.randn(32, 128))
    assert_equals_eager(program, 1e-5)
    assert externs(program) == []


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_sides_of_the_branches_equal_eager(sign: float) -> None:
    assert_equals_eager(Compiled(f, torch.full((5,), sign * 9.0)), 1e-6)
    assert_equals_eager(Compiled(g, torch.full((4, 3), sign), torch.randn(4, 3) * 0.1), 1e-6)


def test_the_reference_model_in_half_precision_equals_eager() -> None:
    source = real_inputs.reference_model().half()
    program = Compiled(source.model, *source.args)
    assert_equals_eager(program, 1e-2)
    assert externs(program) == ["aten.addmm.default"] * 3


def test_the_reference_model_with_a_symbolic_batch_equals_eager() -> None:
    source = real_inputs.reference_model()
    program = Compiled(source.model, *source.args, dynamic=True)
    assert_equals_eager(program, 1e-5)
    (lowered,) = program.lowered
    assert lowered.graph.symbols


def test_h_with_symbolic_sizes_equals_eager() -> None:
    program = Compiled(h, torch.randn(32, 100), torch.randn(32, 100), dynamic=True)
    assert_equals_eager(program, 1e-5)


def test_llama_with_a_symbolic_length_equals_eager() -> None:
    source = real_inputs.llama()
    (ids,) = source.args
    torch._dynamo.mark_dynamic(ids, 1)
    program = Compiled(source.model, ids)
    assert_equals_eager(program, 1e-4)
    (lowered,) = program.lowered
    assert lowered.graph.symbols
    verify_graph(lowered.graph)


def test_decomposed_graphs_follow_the_rules_of_prims(llama: Compiled, bert: Compiled) -> None:
    for program in (llama, bert):
        verify_graph(program.lowered[0].graph)


def test_llama_leaves_only_contractions_and_attention_to_the_framework(llama: Compiled) -> None:
    assert all(map(is_contraction, externs(llama)))
    assert len(externs(llama)) == 15 + 2


def test_llama_s_running_sum_folds_and_only_the_gather_of_the_embedding_is_left(
    llama: Compiled,
) -> None:
    names = prim_names(llama.lowered[0])
    assert "cumsum" not in names
    assert [name for name in names if name in ("take", "gather_nd", "gather_along")] == ["take"]


def test_bert_leaves_only_contractions_and_attention_to_the_framework(bert: Compiled) -> None:
    assert all(map(is_contraction, externs(bert)))


def test_every_captured_node_is_reported_with_a_reason(llama: Compiled, bert: Compiled) -> None:
    for program in (llama, bert):
        captured, lowered = program.captured[0].graph, program.lowered[0]
        assert [entry.index for entry in lowered.report] == list(range(len(captured.nodes)))
        assert [entry.op for entry in lowered.report] == [node.op for node in captured.nodes]
        assert all(entry.detail for entry in lowered.report)


def test_the_report_distinguishes_folded_decomposed_and_extern(llama: Compiled) -> None:
    fates: dict[str, set[NodeOutcome]] = {}
    for entry in llama.lowered[0].report:
        fates.setdefault(entry.op, set()).add(entry.outcome)
    assert fates["aten.cumsum.default"] == {NodeOutcome.FOLDED}
    assert fates["aten.mm.default"] == {NodeOutcome.EXTERN}
    assert fates["aten.silu.default"] == {NodeOutcome.DECOMPOSED}


def test_output_types_keep_the_binding_strides(llama: Compiled, bert: Compiled) -> None:
    for program in (llama, bert):
        captured, lowered = program.captured[0].graph, program.lowered[0].graph
        assert lowered.output_types == captured.output_types
        assert [i.kind for i in lowered.inputs] == [i.kind for i in captured.inputs]
