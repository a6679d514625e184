"""The integer algebra against brute force: construction, substitution, simplification, proofs."""

import doctest
import itertools
import random
import time
from collections.abc import Iterator

import pytest

from kernelfarm.ir.algebra import expr as symbolic
from kernelfarm.ir.algebra import simplify as simplify_module
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div, maximum, minimum, symbol
from kernelfarm.ir.algebra.simplify import Bounds, simplify

ROW, COL, LANE, S0 = (symbol(name) for name in ("i", "j", "k", "s0"))
SIZES = (1, 3, 6)


@pytest.fixture
def rng() -> random.Random:
    seed = time.time_ns()
    print(f"seed {seed}")  # pytest shows it when a test fails
    return random.Random(seed)


class Tree:
    """An expression and the same computation in Python's integers."""

    def __init__(self, rng: random.Random, depth: int) -> None:
        self.op = "leaf"
        if depth == 0 or rng.random() < 0.2:
            self.leaf: str | int = rng.choice([*"ijk", "s0", rng.randint(-4, 12)])
            return
        self.op = rng.choice(["+", "-", "*", "//", "%", "min", "max", "+", "//", "%"])
        self.left = Tree(rng, depth - 1)
        if self.op in ("//", "%"):
            self.right = Tree(rng, 0)
            self.right.leaf = rng.randint(1, 12) if rng.random() < 0.8 else "s0"
        else:
            self.right = Tree(rng, depth - 1 if self.op != "*" else 0)

    def expr(self) -> Expr:
        if self.op == "leaf":
            return symbol(self.leaf) if isinstance(self.leaf, str) else as_expr(self.leaf)
        return _apply_expr(self.op, self.left.expr(), self.right.expr())

    def value(self, values: dict[str, int]) -> int:
        if self.op == "leaf":
            return values[self.leaf] if isinstance(self.leaf, str) else self.leaf
        return _apply_int(self.op, self.left.value(values), self.right.value(values))


def _apply_expr(op: str, a: Expr, b: Expr) -> Expr:
    table = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "min": lambda: minimum(a, b),
        "max": lambda: maximum(a, b),
    }
    return table[op]()


def _apply_int(op: str, a: int, b: int) -> int:
    table = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
    }
    return table[op]()


def assignments(i: int, j: int) -> Iterator[dict[str, int]]:
    for s0 in SIZES:
        for a, b, c in itertools.product(range(i), range(j), range(s0)):
            yield {"i": a, "j": b, "k": c, "s0": s0}


def test_every_rewrite_and_proof_agrees_with_brute_force(rng: random.Random) -> None:
    for _ in range(1500):
        i, j = rng.randint(1, 5), rng.randint(1, 4)
        bounds = Bounds.of_extents({"i": i, "j": j, "k": S0})
        bounds = bounds.with_size("s0", 1, rng.choice([None, 6]))
        tree = Tree(rng, 4)
        built = tree.expr()
        simplified = simplify(built, bounds)
        low, high = bounds.interval(built)
        is_nonnegative = bounds.is_nonnegative(built)
        for values in assignments(i, j):
            expected = tree.value(values)
            context = f"{built} -> {simplified} at {values}"
            assert built.evaluate(values) == expected, context
            assert simplified.evaluate(values) == expected, context
            assert low is None or low <= expected, context
            assert high is None or expected <= high, context
            assert not is_nonnegative or expected >= 0, context


def test_substitution_means_evaluation_at_the_substituted_values(rng: random.Random) -> None:
    for _ in range(300):
        outer, inner = Tree(rng, 3), Tree(rng, 2)
        replaced = outer.expr().substitute({"i": inner.expr()})
        for values in assignments(3, 2):
            expected = outer.value({**values, "i": inner.value(values)})
            assert replaced.evaluate(values) == expected, f"{replaced} at {values}"


def test_linear_parts_recombine_to_the_expression(rng: random.Random) -> None:
    for _ in range(300):
        built = Tree(rng, 3).expr()
        parts = built.linear_in("i")
        if parts is None:
            continue
        factor, rest = parts
        assert "i" not in factor.symbols | rest.symbols
        assert factor * ROW + rest is built


def test_delinearized_indices_simplify_to_their_loop_variables() -> None:
    bounds = Bounds.of_extents({"i": 4, "j": 6, "k": 8})
    linear = ROW * 48 + COL * 8 + LANE
    assert simplify(linear // 48, bounds) is ROW
    assert simplify((linear // 8) % 6, bounds) is COL
    assert simplify(linear % 8, bounds) is LANE
    assert simplify((linear // 16) * 16 + linear % 16, bounds) is linear


def test_symbolic_row_size_divides_out() -> None:
    bounds = Bounds.of_extents({"i": 4, "j": S0}).with_size("s0", 2, None)
    assert simplify((ROW * S0 + COL) // S0, bounds) is ROW
    assert simplify((ROW * S0 + COL) % S0, bounds) is COL


def test_quotient_and_remainder_by_a_symbolic_size_join() -> None:
    s1 = symbol("s1")
    bounds = Bounds.of_extents({"i": 3 * S0 * s1}).with_size("s0", 2, None)
    for size in (S0, 3 * S0, S0 * s1, as_expr(6)):
        for factor in (as_expr(64), S0, 5 * s1):
            parts = factor * (ROW % size) + factor * size * (ROW // size)
            assert simplify(parts + COL, bounds) == factor * ROW + COL
            assert simplify(parts + factor, bounds) == factor * ROW + factor
    apart = 64 * (ROW % S0) + 32 * S0 * (ROW // S0)
    assert simplify(apart, bounds) == apart


def test_a_multiple_of_a_symbolic_size_leaves_no_remainder() -> None:
    assert (3 * S0 * ROW) % S0 == 0
    assert (3 * S0 * ROW) // S0 == 3 * ROW


def test_an_unproven_range_is_left_alone() -> None:
    bounds = Bounds.of_extents({"i": 9})
    assert simplify(ROW // 8, bounds) is ROW // 8
    assert simplify(ROW % 8, bounds) is ROW % 8


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (ROW * 2 - COL + 1, "2*i - j + 1"),
        ((ROW + 1) // 4 * 3, "3*((i + 1)//4)"),
        (minimum(ROW, S0) % 5, "(min(i, s0)%5)"),
        (ceil_div(S0, 4), "((s0 + 3)//4)"),
        (-ROW, "-i"),
    ],
)
def test_expressions_print_readably(expr: Expr, text: str) -> None:
    assert str(expr) == text


@pytest.mark.parametrize("module", [symbolic, simplify_module])
def test_examples_in_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]  # modules have no common static type
    assert result.attempted > 0
    assert result.failed == 0
