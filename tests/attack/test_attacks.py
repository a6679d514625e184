"""Messages of the attacks, and the limits of their results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.graph_jobs import import_graph
from kernelfarm.digest import program_key
from kernelfarm.errors import InvalidGraphError
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from tests.attack.attacks import ATTACKS, EXPLAIN, Attack
from tests.attack.measure import Row, measure
from tests.attack.victim import LIMIT_S, Waits
from tests.attack.warming import MeasuredFarm, Queues, measure_warming
from tests.support import hostile_requests
from tests.support.hostile_requests import MIB, Template

SMALL = (
    hostile_requests.small_program,
    hostile_requests.cat_of_dynamic_inputs,
    hostile_requests.product_of_extents,
    hostile_requests.heavy_kernel,
)


def key_of(template: Template, number: int) -> bytes:
    request = api.CompileRequest.FromString(template.copy(number))
    return program_key(import_graph(request.graph, 1000), request.targets[0], ())


@pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)
def test_copies_are_well_formed_graphs_with_keys_of_their_own(make: Callable[[], Template]) -> None:
    template = make()
    assert len(template.data) < 20_000
    keys = {key_of(template, number) for number in range(20)}
    assert len(keys) == 20


def test_a_failing_graph_is_refused() -> None:
    request = api.CompileRequest.FromString(hostile_requests.failing_graph().copy(3))
    graph = import_graph(request.graph, 1000)
    with pytest.raises(InvalidGraphError, match="result 0 is stated as"):
        decompose_to_prims(graph)


def test_large_messages_have_the_sizes_of_their_attacks() -> None:
    explained = hostile_requests.explained_products()
    assert 2_000_000 < len(explained.data) < 3_000_000
    request = cache_api.ExplainMissRequest.FromString(explained.copy(1))
    sizes = [size.SerializeToString() for size in request.graph.nodes[0].args[-1].list.items]
    assert len(set(sizes)) == len(sizes) > 10_000
    assert len(hostile_requests.many_empty_nodes(MIB).data) == pytest.approx(MIB, rel=0.01)
    named = api.CompileRequest.FromString(hostile_requests.long_operator_name(MIB).copy(1))
    assert len(named.graph.nodes[0].op) > MIB


def test_each_weakness_has_an_attack() -> None:
    assert {attack.fault for attack in ATTACKS} == {1, 3, 4, 6}
    assert any(attack.method == EXPLAIN for attack in ATTACKS)


def test_percentiles_are_of_the_nearest_rank_and_limits_judge_them() -> None:
    waits = Waits([float(number) for number in range(1, 201)])
    assert (waits.median(), waits.percentile(99), waits.percentile(100)) == (100.5, 198.0, 200.0)
    assert Waits().percentile(99) == LIMIT_S
    row = Row("hit", 10, 0.1, 0.2, 10, 0.1, 0.4, {}, 2.0)
    assert row.holds
    assert not Row("hit", 10, 0.1, 0.2, 10, 0.1, 0.41, {}, 2.0).holds
    assert not Row("hit", 10, 0.1, 0.2, 10, 0.1, 0.4, {"UNAVAILABLE": 1}, 2.0).holds


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_another_tenant_is_served_while_one_attacks(attack: Attack, tmp_path: Path) -> None:
    """Without limits on ratios, which depend on other load: no call fails, and the farm serves."""
    result = measure(attack, 20.0, 10.0, tmp_path)
    assert [row.failures for row in result.rows] == [{}] * len(result.rows)
    assert result.service_s is not None
    assert result.rss_most_bytes < result.rss_before_bytes + 2 * 1024 * MIB


def test_a_queue_that_was_often_empty_was_not_full() -> None:
    assert Queues({"cpu": [1] * 9 + [0], "cuda": [5]}).were_full
    assert not Queues({"cpu": [1] * 8 + [0] * 2, "cuda": [5]}).were_full
    assert not Queues({"cpu": [], "cuda": []}).were_full


@pytest.mark.slow  # it captures models and measures for a minute
@pytest.mark.timeout(1200)
def test_users_are_served_while_a_warming_job_fills_the_queues(tmp_path: Path) -> None:
    """Without limits on ratios, which depend on other load."""
    result = measure_warming(30.0, 10.0, tmp_path, MeasuredFarm())
    assert [row.failures for row in result.rows] == [{}] * len(result.rows)
    assert result.queues.were_full
