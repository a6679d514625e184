"""Keys of random graphs: what is arbitrary keeps them, what has meaning does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernelfarm.digest import kernel_key, program_identity, program_key, program_keys
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Graph, Ref, TensorType, tensor_type_of
from kernelfarm.ir.loop_ir import Compute, Kernel
from kernelfarm.ir.text import parse_kernel
from tests.support.examples import examples
from tests.support.ir_strategies import KERNEL_FILES, captured_graphs

TARGET = "cuda:sm_90a"
OPTIONS = (("deterministic", "False"), ("fallback_random", "False"))

words = st.text(min_size=1, max_size=12)


def key_of(graph: Graph) -> bytes:
    return program_key(graph, TARGET, OPTIONS)


@settings(max_examples=examples(50), deadline=None)
@given(captured_graphs(), words, st.integers(0, 63), st.permutations(OPTIONS))
def test_paths_ranks_names_hints_and_the_order_of_options_keep_the_key(
    graph: Graph, word: str, rank: int, options: list[tuple[str, str]]
) -> None:
    elsewhere = replace(
        graph,
        symbols=tuple(replace(size, hint=rank + 2) for size in graph.symbols),
        inputs=tuple(replace(i, name=f"{word}_rank{rank}_cuda:{rank}") for i in graph.inputs),
        nodes=tuple(
            replace(node, location=number % 2, origins=(rank, number))
            for number, node in enumerate(graph.nodes)
        ),
        locations=(f"/home/{word}/rank{rank}/model.py:{rank}",),
    )
    assert program_key(elsewhere, TARGET, tuple(options)) == key_of(graph)


def another_op(graph: Graph, at: int) -> Graph:
    node = graph.nodes[at % len(graph.nodes)]
    return with_node(graph, at, op=f"{node.op}_")


def another_argument(graph: Graph, at: int) -> Graph:
    node = graph.nodes[at % len(graph.nodes)]
    return with_node(graph, at, args=(*node.args, 12345))


def another_attribute(graph: Graph, at: int) -> Graph:
    node = graph.nodes[at % len(graph.nodes)]
    return with_node(graph, at, attrs=(*node.attrs, ("zeta", True)))


def another_result_type(graph: Graph, at: int) -> Graph:
    node = graph.nodes[at % len(graph.nodes)]
    return with_node(graph, at, types=(retyped(node.types[0]), *node.types[1:]))


def another_input_type(graph: Graph, at: int) -> Graph:
    position = at % len(graph.inputs)
    source = graph.inputs[position]
    kind = tensor_type_of(source)
    assert kind is not None
    inputs = list(graph.inputs)
    inputs[position] = replace(source, kind=retyped(kind))
    return replace(graph, inputs=tuple(inputs))


def another_range(graph: Graph, at: int) -> Graph:
    """A bound of a symbol that the graph uses; others are no part of it."""
    used = {name for source in graph.inputs for name in symbols_of(tensor_type_of(source))}
    assume(used)
    return replace(
        graph,
        symbols=tuple(
            replace(size, lower=size.lower + 1) if size.name in used else size
            for size in graph.symbols
        ),
    )


def another_output(graph: Graph, at: int) -> Graph:
    return replace(
        graph,
        outputs=(*graph.outputs, graph.outputs[0]),
        output_types=(*graph.output_types, graph.output_types[0]),
    )


def swapped_operands(graph: Graph, at: int) -> Graph:
    node = graph.nodes[at % len(graph.nodes)]
    refs = [argument for argument in node.args if isinstance(argument, Ref)]
    assume(len(refs) > 1 and refs[0] != refs[-1])
    return with_node(graph, at, args=tuple(reversed(node.args)))


CHANGES: tuple[Callable[[Graph, int], Graph], ...] = (
    another_op,
    another_argument,
    another_attribute,
    another_result_type,
    another_input_type,
    another_range,
    another_output,
    swapped_operands,
)


def with_node(graph: Graph, at: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[at % len(nodes)] = replace(nodes[at % len(nodes)], **changes)
    return replace(graph, nodes=tuple(nodes))


def retyped(kind: TensorType) -> TensorType:
    return replace(kind, dtype=DType.F64 if kind.dtype is not DType.F64 else DType.F32)


def symbols_of(kind: TensorType | None) -> set[str]:
    return set() if kind is None else {n for extent in kind.shape for n in extent.symbols}


@settings(max_examples=examples(50), deadline=None)
@given(captured_graphs(), st.sampled_from(CHANGES), st.integers(0, 9))
def test_every_change_of_meaning_changes_the_key(
    graph: Graph, change: Callable[[Graph, int], Graph], at: int
) -> None:
    assume(graph.nodes)
    assert key_of(change(graph, at)) != key_of(graph)


@settings(max_examples=examples(50), deadline=None)
@given(captured_graphs(), words, words)
def test_targets_and_options_change_the_key(graph: Graph, name: str, value: str) -> None:
    keys = {
        key_of(graph),
        program_key(graph, "rocm:gfx942", OPTIONS),
        program_key(graph, TARGET, (*OPTIONS, (f"new {name}", value))),
        program_key(graph, TARGET, (*OPTIONS, (f"new {name}{value}", ""))),
    }
    assert len(keys) == 4
    assert program_keys(graph, (TARGET,), OPTIONS) == {TARGET: key_of(graph)}


@settings(max_examples=examples(50), deadline=None)
@given(captured_graphs(), st.sampled_from(CHANGES), st.integers(0, 9))
def test_the_parts_of_a_key_differ_where_the_key_does(
    graph: Graph, change: Callable[[Graph, int], Graph], at: int
) -> None:
    assume(graph.nodes)
    parts = program_identity(graph, OPTIONS).parts(TARGET)
    changed = program_identity(change(graph, at), OPTIONS).parts(TARGET)
    differing = {part for part, value in parts.items() if changed[part] != value}
    assert differing == ({"graph", "operators"} if change is another_op else {"graph"})
    assert program_identity(graph, OPTIONS).parts("cpu:x") == {**parts, "target": "cpu:x"}


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(KERNEL_FILES), words, st.randoms(use_true_random=False))
def test_a_kernels_names_keep_its_key_and_its_statements_do_not(
    path: object, word: str, random: Random
) -> None:
    kernel = parse_kernel(path.read_text())  # type: ignore[attr-defined] # a Path
    assert kernel_key(replace(kernel, name=word, comments=(word,)), TARGET) == kernel_key(
        kernel, TARGET
    )
    assert kernel_key(_with_another_statement(kernel, random), TARGET) != kernel_key(kernel, TARGET)


def _with_another_statement(kernel: Kernel, random: Random) -> Kernel:
    computes = [i for i, s in enumerate(kernel.body) if isinstance(s, Compute)]
    if not computes:
        axis = kernel.outer[0]
        wider = replace(axis, extent=axis.extent + as_expr(1))
        return replace(kernel, outer=(wider, *kernel.outer[1:]))
    at = random.choice(computes)
    body = list(kernel.body)
    statement = body[at]
    assert isinstance(statement, Compute)
    body[at] = replace(statement, op=f"{statement.op}x")
    return replace(kernel, body=tuple(body))
