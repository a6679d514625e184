"""Fuses loop nests into kernels: first a producer with its consumer, then independent neighbours.

Merges are tried in the order of the memory traffic that they save. Refusals are kept with their
reasons, for the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.graph_ir import Node
from kernelfarm.ir.loop_ir import Compute, Reduce
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.fusion.dependences import Dependences
from optimizer_svc.fusion.merge_groups import MergeContext, merge_groups
from optimizer_svc.fusion.state import FusionState
from optimizer_svc.ir.fused import Fusion, Refusal
from optimizer_svc.ir.group import Group
from optimizer_svc.ir.materialization import Materialization
from optimizer_svc.ir.nest import Nest
from optimizer_svc.ir.products import NO_PRODUCTS, Products
from optimizer_svc.kernels.assemble_kernel import assemble_kernel

MAX_PARAMS = 24
"""The most buffers of one kernel: their pointers take registers, and each launch passes them."""
NEIGHBOURS = 4
"""The number of neighbours that a group is compared with, by each criterion."""
MAX_DISTANCE = 96
"""The most graph nodes between two groups that share only their domain."""
MAX_UNRELATED_BYTES = 1 << 20
"""With more traffic, a launch costs little beside it: fusing unrelated loops gains nothing."""
MAX_PRODUCT_SUMS = 12
"""The most sums of products of one kernel on a processor, whose registers hold them. 8 rows by two
weights of 2,816 x 1,024 take 1.14 times as long in one kernel as in two (AMD EPYC, Zen 5, bf16)."""
MAX_REFUSALS_REPORTED = 400

Pair = tuple[int, int]


def _is_needed(step: Group | Node, stored: frozenset[int]) -> bool:
    """False for a group whose values are not stored: only values without elements read them."""
    return not isinstance(step, Group) or not stored.isdisjoint(step.positions)


def fuse_nests(
    chosen: Materialization, nests: tuple[Nest, ...], products: Products = NO_PRODUCTS
) -> Fusion:
    """The fusion of the nests; `products` says which ones the code generator computes in tiles."""
    work = _Fuser(FusionState(chosen, nests), products)
    work.until_stable(_vertical_pairs)
    work.gather(_runs_of_slices(work.state))
    work.until_stable(_horizontal_pairs)
    work.until_stable(_vertical_pairs)
    state = work.state
    stored = frozenset(n.value for n in nests if state.is_stored(n.value))
    steps = tuple(step for step in _in_order(state) if _is_needed(step, stored))
    named = {min(step.positions) for step in steps if isinstance(step, Group)}
    refusals = tuple(r for r in work.standing_refusals() if {r.first, r.second} <= named)
    return Fusion(
        steps=steps,
        stored=stored,
        refusals=refusals[:MAX_REFUSALS_REPORTED],
        nests=len(nests),
    )


class _Fuser:
    """Tries pairs of groups until none can be merged; keeps the refusals."""

    def __init__(self, state: FusionState, products: Products) -> None:
        self.state = state
        self._products = products
        self._reordered = products.reordered
        self._product_sums = {
            nest.value: _product_sums(nest)
            for group in state.groups.values()
            for nest in (member.nest for member in group.members)
        }
        self.refusals: dict[Pair, Refusal] = {}
        self._context = MergeContext(state.chosen.storages, state.chosen.facts.bounds, state.likely)
        self._versions: dict[int, int] = {}
        self._tried: dict[Pair, Pair] = {}

    def until_stable(self, pairs: Callable[[FusionState], Iterator[Pair]]) -> None:
        """Merges pairs, best first, until no pair can be merged."""
        while True:
            found = sorted(dict.fromkeys(pairs(self.state)), key=self._rank)
            merged = [self._try(pair) for pair in found]
            if not any(merged):
                return

    def gather(self, runs: Iterable[Sequence[int]]) -> None:
        """Merges each sequence of groups into as few groups as possible, from the first on."""
        for run in runs:
            first, *rest = run
            for name in rest:
                if not self._try((first, name)) and name in self.state.groups:
                    first = name

    def standing_refusals(self) -> Iterator[Refusal]:
        """The refusals between groups that still exist, by a value of each."""
        groups = self.state.groups
        for (first, second), refusal in self.refusals.items():
            if first in groups and second in groups:
                names = min(groups[first].positions), min(groups[second].positions)
                yield Refusal(*names, refusal.reason)

    def _rank(self, pair: Pair) -> tuple[int, int, int]:
        first, second = pair
        return -_saved_bytes(self.state, first, second), abs(second - first), first

    def _try(self, pair: Pair) -> bool:
        spend(6)
        first, second = pair
        groups = self.state.groups
        if first not in groups or second not in groups:
            return False
        versions = self._versions.get(first, 0), self._versions.get(second, 0)
        if self._tried.get(pair) == versions:
            return False
        self._tried[pair] = versions
        verdict = self._merged(first, second)
        if isinstance(verdict, Refused):
            names = min(groups[first].positions), min(groups[second].positions)
            self.refusals[pair] = Refusal(*names, verdict.reason)
            return False
        self.refusals.pop(pair, None)
        self.state.replace(first, second, verdict)
        self._versions[first] = versions[0] + 1
        return True

    def _merged(self, first: int, second: int) -> Group | Refused:
        schedule = self.state
        if _is_path_around(schedule.dependences, first, second):
            return Refused("another kernel or extern step lies between them")
        a, b = schedule.groups[first], schedule.groups[second]
        if len(schedule.storage_ids(a) | schedule.storage_ids(b)) > MAX_PARAMS:
            return Refused(f"more than {MAX_PARAMS} buffers")
        refused = (
            _kept_apart(schedule, a, b) or self._orders_alone(a, b) or self._fills_registers(a, b)
        )
        if refused is not None:
            return refused
        merged = merge_groups(self._context, a, b)
        if isinstance(merged, Refused) or not (self._is_product(a) or self._is_product(b)):
            return merged
        if not self._is_product(merged):
            return Refused("one is a product in tiles, and the other would not fit its tiles")
        return merged

    def _orders_alone(self, a: Group, b: Group) -> Refused | None:
        """The refusal of a group that would store its results far from each other."""
        orders = [not self._reordered.isdisjoint(g.positions) for g in (a, b)]
        if orders[0] == orders[1]:
            return None
        return Refused("one puts values in the order of integers that share bytes")

    def _fills_registers(self, a: Group, b: Group) -> Refused | None:
        """The refusal of products whose sums would not stay in the registers of a processor."""
        if not self._products.are_of_processor:
            return None
        known = self._product_sums
        sums = [sum(known.get(value, 0) for value in group.positions) for group in (a, b)]
        if min(sums) == 0 or sum(sums) <= MAX_PRODUCT_SUMS:
            return None
        return Refused(f"more than {MAX_PRODUCT_SUMS} sums of products")

    def _is_product(self, group: Group) -> bool:
        """True if a code generator would compute the group in tiles of a product."""
        if not any(_sums_products(member.nest) for member in group.members):
            return False
        spend(8 * group.statements)
        chosen = self.state.chosen
        stored = [value for value in group.positions if self.state.is_stored(value)]
        draft = assemble_kernel(group, chosen.storages, stored, chosen.facts.bounds)
        return self._products.are_in_tiles(draft.kernel)


def _sums_products(nest: Nest) -> bool:
    """True if a nest of two axes and more sums products of two different values."""
    return len(nest.axes) > 1 and _product_sums(nest) > 0


def _product_sums(nest: Nest) -> int:
    """How many sums of products of two different values a nest has."""
    terms = (nest.body[s.operand] for s in nest.body if isinstance(s, Reduce))
    return sum(
        isinstance(t, Compute) and t.op == "mul" and t.operands[0] != t.operands[1] for t in terms
    )


def _kept_apart(state: FusionState, a: Group, b: Group) -> Refused | None:
    """The refusal of groups whose values need kernels of their own."""
    if not state.chosen.partial_sums.isdisjoint((*a.positions, *b.positions)):
        return Refused("a part of a sum is computed early, to end the memory of what it adds")
    read = {v for v, _ in b.reads}.intersection(a.positions)
    read |= {v for v, _ in a.reads}.intersection(b.positions)
    if not state.chosen.ends.isdisjoint(read):
        return Refused("the other order of axes would store neighbours far from each other")
    if not read and state.chosen.blocked and _has_blocks(state, a) != _has_blocks(state, b):
        return Refused("one is launched in blocks of large memory, which the other does not use")
    wholes = state.sliced_values(a) | state.sliced_values(b)
    if any(value in wholes for group in (a, b) for value, _ in group.reads):
        return Refused("what is stored in parts is read when all of them are stored")
    return None


def _has_blocks(state: FusionState, group: Group) -> bool:
    """True if a group makes or reads values that need not be in memory as a whole."""
    used = {*group.positions, *(value for value, _ in group.reads)}
    return not state.chosen.blocked.isdisjoint(used)


def _is_path_around(dependences: Dependences, first: int, second: int) -> bool:
    if dependences.level(first) <= dependences.level(second):
        return dependences.is_path_around(first, second)
    return dependences.is_path_around(second, first)


def _vertical_pairs(state: FusionState) -> Iterator[Pair]:
    """Pairs of a group and a group that reads its values."""
    for name in state.groups:
        for reader in sorted(state.dependences.readers(name)):
            if reader in state.groups:
                yield name, reader


def _runs_of_slices(state: FusionState) -> list[list[int]]:
    """Sequences of groups that store slices of one value over equal domains, in order."""
    found: dict[object, list[int]] = {}
    for name, group in sorted(state.groups.items(), key=lambda item: item[1].position):
        for whole in sorted(state.sliced_values(group)):
            found.setdefault((whole, group.size()), []).append(name)
    return list(found.values())


def _horizontal_pairs(state: FusionState) -> Iterator[Pair]:
    """Pairs of independent groups that read one tensor, or that are near and have equal domains.

    A group that has a reduction also counts by the domain of its rows.
    """
    by_read: dict[int, list[int]] = {}
    by_domain: dict[object, list[int]] = {}
    for name, group in sorted(state.groups.items(), key=lambda item: item[1].position):
        for value in dict.fromkeys(value for value, _ in group.reads):
            by_read.setdefault(value, []).append(name)
        for size in dict.fromkeys((group.size(), product_of([a.extent for a in group.outer]))):
            by_domain.setdefault(size, []).append(name)
    for names in by_read.values():
        for pair in _near(names):
            if _is_independent(state, pair) and not _fills_early(state, pair):
                yield pair
    for names in by_domain.values():
        for pair in _near(names):
            if _is_independent(state, pair) and _is_worth_merging(state, pair):
                yield pair


def _fills_early(state: FusionState, pair: Pair) -> bool:
    """True if a merge would start to fill large memory earlier than needed."""
    first, second = (state.sliced_values(state.groups[name]) for name in pair)
    return sum(state.size_bytes(whole) for whole in first ^ second) > MAX_UNRELATED_BYTES


def _near(names: list[int]) -> Iterator[Pair]:
    for number, name in enumerate(names):
        for other in names[number + 1 : number + 1 + NEIGHBOURS]:
            yield name, other


def _is_independent(state: FusionState, pair: Pair) -> bool:
    first, second = pair
    edges = state.dependences
    return first not in edges.readers(second) and second not in edges.readers(first)


def _is_worth_merging(state: FusionState, pair: Pair) -> bool:
    """True for loops without a common tensor if they have a common reader or little traffic."""
    a, b = (state.groups[name] for name in pair)
    if abs(a.position - b.position) > MAX_DISTANCE:
        return False
    readers = [state.dependences.readers(name) for name in pair]
    if readers[0] & readers[1]:
        return True
    return sum(state.size_bytes(v) for g in (a, b) for v in g.positions) <= MAX_UNRELATED_BYTES


def _saved_bytes(state: FusionState, first: int, second: int) -> int:
    """The memory traffic in bytes that one kernel instead of two saves."""
    a, b = state.groups[first], state.groups[second]
    spend(4 + len(a.positions) + len(a.reads) + len(b.reads))
    reads = {value for value, _ in b.reads}
    saved = 0
    for value in a.positions:
        if value in reads:
            is_last = state.reading(value) <= {first, second}
            saved += state.size_bytes(value) * (2 if is_last else 1)
    shared = {value for value, _ in a.reads} & reads
    return saved + sum(state.size_bytes(value) for value in shared)


def _in_order(state: FusionState) -> Iterator[Group | Node]:
    """Groups and extern nodes, each after its dependences, otherwise in the graph's order."""
    positions = {name: group.position for name, group in state.groups.items()}
    positions.update({name: name for name in state.externs})
    done: set[int] = set()
    for start in sorted(positions, key=positions.__getitem__):
        pending = [start]
        while pending:
            name = pending[-1]
            missing = [n for n in state.dependences.sources(name) if n not in done]
            if missing and name not in done:
                pending.extend(sorted(missing, key=positions.__getitem__, reverse=True))
                continue
            pending.pop()
            if name not in done:
                done.add(name)
                yield state.groups[name] if name in state.groups else state.externs[name]
