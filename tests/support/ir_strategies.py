"""Hypothesis strategies for expressions and graphs, and the golden texts."""

from pathlib import Path

from hypothesis import strategies as st

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, maximum, minimum, symbol
from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.graph_ir import Arg, Graph, Input, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.guards import TEXT_SUBJECTS, FactAtom, FactSubject

GOLDEN = Path(__file__).parent / "ir_texts"
GRAPH_FILES = sorted(GOLDEN.glob("*.graph"))
KERNEL_FILES = sorted(GOLDEN.glob("*.kernel"))

SYMBOLS = ("s0", "s1", "u3")


def expressions(names: tuple[str, ...] = SYMBOLS, max_leaves: int = 8) -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from(names).map(symbol), st.integers(-1000, 1000).map(as_expr))
    return st.recursive(leaves, _combined, max_leaves=max_leaves)


def _combined(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    divisors = st.integers(1, 64).map(as_expr)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a // b, inner, divisors),
        st.builds(lambda a, b: a % b, inner, divisors),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
    )


def arguments() -> st.SearchStrategy[Arg]:
    leaves: st.SearchStrategy[Arg] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(max_size=8),
        st.sampled_from(list(DType)),
        expressions(max_leaves=3),
        st.just(Ref(0)),
    )
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)


@st.composite
def captured_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of the `aten` dialect: valid in structure, with unknown operators."""
    types = st.builds(
        lambda dtype, shape: TensorType(dtype, shape, shape),
        st.sampled_from(list(DType)),
        st.lists(st.sampled_from([symbol(n) for n in SYMBOLS] + [as_expr(4)]), max_size=3).map(
            tuple
        ),
    )
    sizes = tuple(SizeSymbol(name, 2, draw(st.sampled_from([None, 99]))) for name in SYMBOLS)
    inputs = tuple(Input(i, draw(types), f"x{i}") for i in range(draw(st.integers(1, 3))))
    defined = {source.value: source.kind for source in inputs}
    nodes = []
    for _ in range(draw(st.integers(0, 5))):
        uses = tuple(Ref(v) for v in draw(st.lists(st.sampled_from(sorted(defined)), max_size=3)))
        names = sorted(draw(st.sets(st.sampled_from(["alpha", "dim", "dtype"]))))
        attrs = tuple((name, draw(arguments())) for name in names)
        results = tuple(len(defined) + i for i in range(draw(st.integers(1, 2))))
        result_types = tuple(draw(types) for _ in results)
        extra = (draw(arguments()),) if draw(st.booleans()) else ()
        op = draw(st.sampled_from(["aten.add.Tensor", "aten.relu.default", "custom::op.x"]))
        nodes.append(Node(op, uses + extra, attrs, results, result_types))
        defined.update(zip(results, result_types, strict=True))
    last = max(defined)
    output_type = defined[last]
    assert isinstance(output_type, TensorType)
    return Graph("aten", sizes, inputs, tuple(nodes), (Ref(last), None), (output_type, None))


@st.composite
def atoms(draw: st.DrawFn) -> FactAtom:
    subject = draw(st.sampled_from(FactSubject))
    is_text = subject in TEXT_SUBJECTS
    ops = [op for op in GuardOp if op is not GuardOp.DIVISIBLE] if is_text else list(GuardOp)
    if subject is FactSubject.INPUT_DTYPE:
        ops = [GuardOp.EQ, GuardOp.NE]
    op = draw(st.sampled_from(ops))
    number = st.integers(0, 2**31)
    where: st.SearchStrategy[object] = number
    if subject in {FactSubject.SYMBOL, FactSubject.ENVIRONMENT}:
        where = st.text(max_size=9)
    elif subject in {FactSubject.INPUT_SIZE, FactSubject.INPUT_STRIDE}:
        where = st.tuples(number, number)
    operand = st.text(max_size=9) if is_text else st.integers(1, 2**62)
    return FactAtom(subject, draw(where), op, draw(operand))
