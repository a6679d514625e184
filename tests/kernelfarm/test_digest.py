"""Keys: stable across renaming and processes, different for every change of meaning."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.digest import canonical_graph, canonical_kernel, kernel_key, program_key
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr, symbol
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.text import parse_graph, parse_kernel, print_kernel
from tests.support.ir_strategies import GOLDEN, GRAPH_FILES, KERNEL_FILES, SYMBOLS, captured_graphs

KEYS = json.loads((GOLDEN / "keys.json").read_text())
TARGET = "cpu:x86-64-v4"


def key_of(graph: Graph) -> bytes:
    return program_key(graph, TARGET, ())


@pytest.mark.parametrize("path", GRAPH_FILES, ids=lambda path: path.name)
def test_program_keys_equal_the_golden_vectors(path: Path) -> None:
    options = (("deterministic", "false"),)
    key = program_key(parse_graph(path.read_text()), "cpu:x86-64-v4", options)
    assert key.hex() == KEYS[path.name]


@pytest.mark.parametrize("path", KERNEL_FILES, ids=lambda path: path.name)
def test_kernel_keys_equal_the_golden_vectors(path: Path) -> None:
    assert kernel_key(parse_kernel(path.read_text()), "cuda:sm_90a").hex() == KEYS[path.name]


def renamed(graph: Graph, values: dict[int, int], symbols: dict[str, str]) -> Graph:
    """The same graph under other names."""
    replacements = {old: symbol(new) for old, new in symbols.items()}

    def arg(old: Arg) -> Arg:
        if isinstance(old, tuple):
            return tuple(arg(item) for item in old)
        if isinstance(old, Ref):
            return Ref(values[old.value])
        return old.substitute(replacements) if isinstance(old, Expr) else old

    def tensor(old: TensorType) -> TensorType:
        shape = tuple(extent.substitute(replacements) for extent in old.shape)
        return TensorType(old.dtype, shape, shape)

    return replace(
        graph,
        symbols=tuple(replace(size, name=symbols[size.name]) for size in graph.symbols),
        inputs=tuple(Input(values[i.value], tensor(i.kind), "other") for i in graph.inputs),
        nodes=tuple(
            Node(
                node.op,
                arg(node.args),
                tuple((name, arg(value)) for name, value in node.attrs),
                tuple(values[result] for result in node.results),
                tuple(tensor(kind) for kind in node.types),
            )
            for node in graph.nodes
        ),
        outputs=arg(graph.outputs),
        output_types=tuple(None if t is None else tensor(t) for t in graph.output_types),
    )


@given(captured_graphs(), st.randoms(use_true_random=False))
def test_renaming_values_and_symbols_keeps_the_key(graph: Graph, random: Random) -> None:
    ids = sorted(graph.types())
    new_ids = random.sample(range(1000), len(ids))
    names = random.sample(["a", "b", "s0", "s1", "zz"], len(SYMBOLS))
    values, symbols = dict(zip(ids, new_ids, strict=True)), dict(zip(SYMBOLS, names, strict=True))
    other = renamed(graph, values, symbols)
    assert canonical_graph(other) == canonical_graph(graph)
    assert key_of(other) == key_of(graph)


@given(captured_graphs())
def test_the_canonical_graph_is_its_own_canonical_form(graph: Graph) -> None:
    canonical = canonical_graph(graph)
    assert canonical_graph(canonical) == canonical


def test_names_hints_locations_and_origins_are_in_no_key() -> None:
    graph = parse_graph((GOLDEN / "captured.graph").read_text())
    stripped = replace(
        graph,
        symbols=tuple(replace(size, hint=7) for size in graph.symbols),
        inputs=tuple(replace(source, name="other") for source in graph.inputs),
        nodes=tuple(replace(node, location=0, origins=(9,)) for node in graph.nodes),
        locations=(),
    )
    assert key_of(stripped) == key_of(graph)


def edited(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        edited("aten.gelu.default", "aten.silu.default"),
        edited('approximate="tanh"', 'approximate="none"'),
        edited("alpha=2", "alpha=2.0"),
        edited("alpha=2", "beta=2"),
        edited("pin_memory=false", "pin_memory=0"),
        edited("-inf", "inf"),
        edited("1e-05", "1.0000000000000001e-06"),
        edited("dtype=f32", "dtype=f16"),
        edited("aten.mm.default(%0, %5)", "aten.mm.default(%5, %0)"),
        edited("from 2 to 512", "from 2 to 513"),
        edited("from 2 to 512", "from 3 to 512"),
        edited("%0: f16[s7, 128]@[128, 1]", "%0: f16[s7, 128]@[1, s7]"),
        edited("{3*s7 - 1}", "{3*s7}"),
        edited("return %11: f16[s7, 128]@[128, 1]", "return %11: f16[s7, 128]@[1, s7]"),
        edited(
            "%12: i64[2]@[1] = aten.add.Tensor(%2, 3;", "%12: i64[2]@[1] = aten.add.Tensor(%2, 4;"
        ),
        edited("graph aten 1", "graph prims 1"),
        edited("graph aten 1", "graph aten 2"),
        edited("a1be4e0e", "a1be4e0f"),
        edited("[128], none, none", "[128], none, %3"),
    ],
)
def test_any_change_of_meaning_changes_the_program_key(edit: Callable[[str], str]) -> None:
    text = (GOLDEN / "captured.graph").read_text()
    assert key_of(parse_graph(edit(text))) != key_of(parse_graph(text))


def test_negative_zero_is_another_program_than_zero() -> None:
    text = "graph prims 1\n%0: f32[] = full(; dtype=f32, shape=[], value=0.0)\nreturn %0: f32[]@[]"
    assert key_of(parse_graph(text)) != key_of(parse_graph(text.replace("0.0", "-0.0")))


def test_target_and_options_are_in_the_program_key() -> None:
    graph = parse_graph(GRAPH_FILES[0].read_text())
    pairs = [("cpu:a", ()), ("cpu:b", ()), ("cpu:a", (("x", "1"),)), ("cpu:a", (("x", "2"),))]
    assert len({program_key(graph, target, options) for target, options in pairs}) == 4


@pytest.mark.parametrize(
    "edit",
    [
        edited("fused_softmax_00000000", "another_name"),
        edited("# softmax of the last axis", "# something else"),
        edited("d0", "row"),
        edited("r0", "column"),
        edited("s0", "batch"),
        edited("in0", "tokens"),
        edited("out0", "z"),
        edited("to 512", "to 512 hint 32"),
    ],
)
def test_names_and_comments_are_in_no_kernel_key(edit: Callable[[str], str]) -> None:
    text = (GOLDEN / "softmax.kernel").read_text()
    before, after = parse_kernel(text), parse_kernel(edit(text))
    assert before != after
    assert kernel_key(after, TARGET) == kernel_key(before, TARGET)


@pytest.mark.parametrize(
    "edit",
    [
        edited("amax", "amin"),
        edited("sub %1, %2", "sub %2, %1"),
        edited("128*d0 + r0", "r0*s0 + d0"),
        edited("reduce r0 in 128", "reduce r0 in 64"),
        edited("for d0 in s0", "for d0 in s0 - 1"),
        edited("to 512", "to 513"),
        edited("bf16[128*s0]", "bf16[256*s0]"),
        edited("bf16", "f16"),
        edited("reduce r0", "for r0"),
        edited("param out", "param inout"),
    ],
)
def test_any_change_of_meaning_changes_the_kernel_key(edit: Callable[[str], str]) -> None:
    text = (GOLDEN / "softmax.kernel").read_text()
    before, after = parse_kernel(text), parse_kernel(edit(text))
    assert kernel_key(after, TARGET) != kernel_key(before, TARGET)


def test_the_target_is_in_the_kernel_key() -> None:
    kernel = parse_kernel(KERNEL_FILES[0].read_text())
    assert kernel_key(kernel, "cpu:a") != kernel_key(kernel, "cpu:b")


def test_the_canonical_kernel_has_canonical_names() -> None:
    kernel = parse_kernel((GOLDEN / "embedding.kernel").read_text())
    text = print_kernel(canonical_kernel(kernel))
    assert "kernel kernel\nsize s0 from 1\nsize s1 from 2\nparam in in0: i64[s0]\n" in text
    assert "%1 = indirect %0 in s1" in text
    assert "load in1[64*%1 + d1]" in text
    assert "#" not in text


def chain_of(length: int) -> Graph:
    s7 = symbol("s7")
    types = [
        TensorType(DType.F32, (s7, as_expr(i % 17)), (as_expr(1), ONE)) for i in range(length + 1)
    ]
    nodes = tuple(
        Node("aten.add.Tensor", (Ref(i), Ref(0)), (("alpha", 0.5),), (i + 1,), (types[i + 1],))
        for i in range(length)
    )
    sizes = (SizeSymbol("s7", 2, None),)
    source = Input(0, types[0])
    return Graph("aten", sizes, (source,), nodes, (Ref(length),), (types[length],))


def test_the_work_for_a_key_grows_with_the_nodes_and_is_little_for_each() -> None:
    """Counted in calls of functions: 100 take less than 20 microseconds."""
    few, many = (calls_of(key_of, chain_of(length)) for length in (500, 2000))
    assert many < 1.1 * 4 * few
    assert few < 100 * 500


def calls_of(work: Callable[[Graph], object], graph: Graph) -> int:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    work(graph)  # fills tables of shared expressions
    sys.setprofile(count)
    try:
        work(graph)
    finally:
        sys.setprofile(None)
    return calls
