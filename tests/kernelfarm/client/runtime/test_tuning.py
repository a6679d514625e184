"""Autotuned kernels: the first launch for a key measures every configuration, and the fastest wins.

There is no GPU. Python functions stand in for binaries, and each adds its time to a simulated
clock, which the timer reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton

from kernelfarm.client import counters
from kernelfarm.client.runtime.program import TuningPolicy
from kernelfarm.client.runtime.tuning import WINNERS, TimeLimit, fastest
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.graph_ir import Arg
from kernelfarm.ir.triton.node import check_node, key_arguments
from kernelfarm.ir.triton.user_kernel import FixedParam
from tests.support.simulated_device import (
    CONFIGS,
    SimulatedDevice,
    add_to,
    added,
    compiled_for,
    grid_of,
    tuned,
)
from tests.support.user_kernel_stand_ins import CompiledHere, user_kernel_node


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    WINNERS.clear()
    counters.reset()
    yield
    torch._dynamo.reset()


def test_the_fastest_configuration_is_launched_with_its_owngrid_of() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})
    compiled = compiled_for(added, device)
    x, y = torch.randn(300), torch.randn(300)

    torch.testing.assert_close(compiled(x, y), x * 2 + y)
    measured = list(device.launched)
    assert [measured.count(block) for block in (32, 64, 128)] == [3 + 6, 3 + 20 + 1, 3 + 10]
    torch.testing.assert_close(compiled(x, y), x * 2 + y)
    assert device.launched == [*measured, 64]
    assert counters.snapshot()["tuning.measured"] == 1


def test_each_measured_launch_sees_the_content_of_the_call_and_changes_only_copies() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})

    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        tuned[grid_of(x.numel())](x, y, x.numel(), 7)
        return x.sum()

    x, y = torch.full((64,), 5.0), torch.ones(64)
    total = compiled_for(update, device)(x, y)

    assert set(device.seen) == {5.0}
    assert total == 6.0 * 64
    assert torch.equal(x, torch.full((64,), 6.0))


@pytest.mark.parametrize("stated", [{}, {"reset_to_zero": ["sum_ptr"]}])
def test_what_is_not_restored_or_is_zeroed_gives_the_same_result(stated: dict[str, Any]) -> None:
    kernel = triton.autotune(configs=CONFIGS, key=["n"], **stated)(add_to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    compiled = compiled_for(function, SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0}))
    x, y = torch.randn(96), torch.randn(96)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), y)


def test_another_value_of_the_key_is_measured_and_a_known_one_is_not() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})
    compiled = compiled_for(added, device)
    for n in (300, 301, 77, 77):
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), x * 2 + y)
    assert counters.snapshot()["tuning.measured"] == 3

    torch._dynamo.reset()  # another graph of the same kernel
    compiled_for(added, device)(torch.randn(300), torch.randn(300))
    assert counters.snapshot()["tuning.measured"] == 3


def test_an_argument_outside_of_the_key_is_not_measured_anew() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})
    compiled = compiled_for(_scaled, device)
    for m in (300, 301, 77):
        compiled(torch.randn(64), torch.randn(64), torch.randn(m))

    node = user_kernel_node(compiled.graphs[1])
    kernel = check_node(node)[0]
    assert [kernel.launched[n].name for n in key_arguments(node)] == ["n"]
    assert len(compiled.graphs) == 2
    # `m` was 300 in the first graph and varies in the second one, whose kernels differ.
    assert counters.snapshot()["tuning.measured"] == 2


def _scaled(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    total = x * 2
    tuned[grid_of(x.numel())](total, y, x.numel(), z.numel())
    return total


def test_without_a_key_every_number_is_one() -> None:
    kernel = triton.autotune(configs=CONFIGS, key=[])(add_to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x * 2
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    compiled = compiled_for(function, SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0}))
    compiled(torch.randn(64), torch.randn(64))

    node = user_kernel_node(compiled.graphs[0])
    launched = check_node(node)[0].launched
    assert [launched[n].name for n in key_arguments(node)] == ["n", "m"]


def test_a_stream_that_records_gets_the_first_configuration_and_a_later_call_measures() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})
    device.block = "the stream records a CUDA graph"
    compiled = compiled_for(added, device)
    x, y = torch.randn(64), torch.randn(64)

    torch.testing.assert_close(compiled(x, y), x * 2 + y)
    assert device.launched == [32]
    assert counters.snapshot()["tuning.not_measured.recording"] == 1

    device.block = ""
    compiled(x, y)
    device.block = "the stream records a CUDA graph"
    compiled(x, y)
    assert device.launched[-1] == 64
    assert counters.snapshot()["tuning.not_measured.recording"] == 1


def test_the_setting_and_a_device_without_a_timer_give_the_first_configuration() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0})
    x, y = torch.randn(64), torch.randn(64)
    compiled_for(added, device, tuning=TuningPolicy(limit_s=0.0))(x, y)
    torch._dynamo.reset()
    CompiledHere(added, stands_in=device.stands_in)(x, y)

    assert device.launched == [32, 32]
    found = counters.snapshot()
    assert found["tuning.not_measured.setting"] == found["tuning.not_measured.device"] == 1


def test_a_configuration_that_the_device_refuses_is_left_out() -> None:
    device = SimulatedDevice({32: 3.0, 64: 1.0, 128: 2.0}, refused=[64])
    x, y = torch.randn(64), torch.randn(64)
    torch.testing.assert_close(compiled_for(added, device)(x, y), x * 2 + y)
    assert device.launched[-1] == 128

    torch._dynamo.reset()
    WINNERS.clear()
    device.refused = [32, 64, 128]
    with pytest.raises(UnavailableError, match=r"launch of _source: status 9"):
        compiled_for(added, device)(x, y)


def test_only_configurations_that_pruning_left_are_captured() -> None:
    def prune(configs: list[Any], named_args: dict[str, Any], **kwargs: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["BLOCK"] <= named_args["n"]]

    kernel = triton.autotune(
        configs=CONFIGS, key=["n"], prune_configs_by={"early_config_prune": prune}
    )(add_to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x * 2
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    device = SimulatedDevice({32: 1.0, 64: 2.0})
    compiled = compiled_for(function, device)
    compiled(torch.randn(100), torch.randn(100))

    assert _blocks(compiled) == [32, 64]
    assert "one of _source_" in compiled.reports[0]


def test_constants_that_heuristics_compute_are_those_of_each_configuration() -> None:
    kernel = triton.autotune(
        configs=[triton.Config({}, num_warps=warps) for warps in (2, 4)], key=["n"]
    )(triton.heuristics({"BLOCK": lambda args: 32 if args["n"] < 100 else 64})(add_to))

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x * 2
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    compiled = compiled_for(function, SimulatedDevice({64: 1.0}))
    compiled(torch.randn(100), torch.randn(100))

    node = user_kernel_node(compiled.graphs[0])
    assert _blocks(compiled) == [64, 64]
    assert [dict(k.options)["num_warps"] for k in check_node(node)] == [2, 4]
    assert node.attr("grids") == ((2, 1, 1), (2, 1, 1))


def test_equal_configurations_are_one_and_those_that_cannot_travel_are_left_out() -> None:
    configs = [*CONFIGS[:2], CONFIGS[0], triton.Config({"BLOCK": 128}, num_ctas=2)]
    kernel = triton.autotune(configs=configs, key=["n"])(add_to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x * 2
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    compiled = compiled_for(function, SimulatedDevice({32: 1.0, 64: 2.0}))
    compiled(torch.randn(100), torch.randn(100))

    assert _blocks(compiled) == [32, 64]


def test_too_many_configurations_are_refused_with_the_limit() -> None:
    configs = [triton.Config({"BLOCK": 32}, num_stages=n) for n in range(129)]
    kernel = triton.autotune(configs=configs, key=["n"])(add_to)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x * 2
        kernel[grid_of(x.numel())](total, y, x.numel(), 7)
        return total

    with pytest.raises(Exception, match="has 129 configurations; expected at most 128"):
        compiled_for(function, SimulatedDevice({32: 1.0}))(torch.randn(100), torch.randn(100))


def _blocks(compiled: CompiledHere) -> list[Arg]:
    kernels = check_node(user_kernel_node(compiled.graphs[0]))
    values = [{p.name: p.value for p in k.params if isinstance(p, FixedParam)} for k in kernels]
    return [of["BLOCK"] for of in values]


class _Script:
    """A timer that reads the times of each launch from a list, over and over."""

    def __init__(self, times_ms: dict[str, list[float]]) -> None:
        self._times_ms, self._last = times_ms, ""

    def device(self) -> str:
        return "a simulated device"

    def obstacle(self) -> str:
        return ""

    def launch(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self._last = name

        return run

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        launch()
        times = self._times_ms[self._last]
        return [times[number % len(times)] for number in range(count)]


@pytest.mark.parametrize(
    ("times_ms", "winner"),
    [
        ({"a": [1.0, 1.1, 1.0, 90.0], "b": [1.2, 1.2, 0.1]}, 0),  # the median, not mean or least
        ({"a": [1.0], "b": [1.0]}, 0),
        ({"a": [0.0], "b": [0.0]}, 0),  # below the resolution of the clock
        ({"a": [2e3], "b": [1e3]}, 1),
    ],
)
def test_the_median_decides_and_the_first_of_equals_wins(
    times_ms: dict[str, list[float]], winner: int
) -> None:
    timer = _Script(times_ms)
    launches = [timer.launch(name) for name in times_ms]

    assert fastest(launches, lambda: None, timer, "kernel", TimeLimit(1e9)).winner == winner


class _Simulated:
    """A timer whose launches take stated times of a simulated clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.launched: list[str] = []

    def device(self) -> str:
        return "a simulated device"

    def obstacle(self) -> str:
        return ""

    def launch(self, name: str, cost_ms: float) -> Callable[[], None]:
        def run() -> None:
            self.launched.append(name)
            self.now_s += cost_ms / 1e3

        return run

    def times_ms(
        self, launch: Callable[[], None], prepare: Callable[[], None], count: int
    ) -> list[float]:
        times = []
        for _ in range(count):
            began_s = self.now_s
            launch()
            times.append(1e3 * (self.now_s - began_s))
        return times

    def winner(self, costs_ms: dict[str, float], limit_s: float) -> int:
        launches = [self.launch(name, cost_ms) for name, cost_ms in costs_ms.items()]
        limit = TimeLimit(limit_s, lambda: self.now_s)
        return fastest(launches, lambda: None, self, "kernel", limit).winner


def test_a_configuration_that_is_much_slower_than_the_best_is_dropped_at_once() -> None:
    timer = _Simulated()

    assert timer.winner({"a": 10.0, "slow": 50.0, "b": 5.0, "near": 15.0}, 1e9) == 2
    counts = {name: timer.launched.count(name) for name in ("a", "slow", "b", "near")}
    assert counts == {"a": 3 + 5, "slow": 2, "b": 3 + 5, "near": 3 + 5}
    assert counters.snapshot()["tuning.dropped"] == 1


def test_the_best_so_far_wins_when_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    timer = _Simulated()
    costs_ms = {"a": 100.0, "b": 80.0, "c": 70.0, "never": 1.0}

    with caplog.at_level("INFO", "kernelfarm.client"):
        assert timer.winner(costs_ms, 1.7) == 2
    assert "never" not in timer.launched
    assert timer.launched.count("c") == 3 + 1  # no time is left for more
    assert counters.snapshot()["tuning.out_of_time"] == 1
    assert "kernel: 3 of 4 configurations were measured in 1.7 s" in caplog.text


def test_a_kernel_gets_a_configuration_that_the_device_takes_after_the_time() -> None:
    timer = _Simulated()

    def refuse() -> None:
        timer.now_s += 9.0
        raise UnavailableError("no")

    launches = [refuse, refuse, timer.launch("a", 1.0), timer.launch("never", 0.1)]
    limit = TimeLimit(1.0, lambda: timer.now_s)
    assert fastest(launches, lambda: None, timer, "kernel", limit).winner == 2
    assert timer.launched == ["a"] * 4


def test_in_several_rounds_the_least_median_counts() -> None:
    """What else the device does disturbs the first round of the fastest launch."""
    order: list[int] = []
    costs_ms = {0: [2.0, 2.0, 2.0], 1: [6.0, 1.0, 1.0]}

    class Disturbed:
        """A clock of stated medians, by launch and round."""

        def device(self) -> str:
            return "a chip"

        def obstacle(self) -> str:
            return ""

        def times_ms(
            self, launch: Callable[[], None], prepare: Callable[[], None], count: int
        ) -> list[float]:
            launch()
            number = order[-1]
            turn = (order.count(number) - 1) // 3  # it is called three times in each
            return [costs_ms[number][turn]] * count

    launches = [lambda: order.append(0), lambda: order.append(1)]
    limit = TimeLimit(30.0, rounds=3)
    found = fastest(launches, lambda: None, Disturbed(), "kernel", limit)
    assert (found.winner, found.times_ms) == (1, (2.0, 1.0))
    assert [order[at] for at in range(0, len(order), 3)] == [0, 1, 1, 0, 0, 1]
