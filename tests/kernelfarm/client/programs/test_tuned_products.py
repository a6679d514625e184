"""Products that the fleet chooses: measured by the clients that the farm asks, used by all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from kernelfarm.client import counters
from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.tuning_client import FarmTuning, ReporterName
from kernelfarm.client.loaders.by_device import host_support
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.client.programs import finder, tuned_products
from kernelfarm.client.programs.product_subjects import (
    CANDIDATES,
    ProductSubject,
    product_subjects,
    timer_of,
)
from kernelfarm.client.programs.product_tuner import TUNER
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.programs.tuned_products import GraphToTune, TunedProducts
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError, DeadlineError, MalformedMessageError
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.targets import target_facts
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.tampering_proxy import TamperingFarm
from tests.support.traced_graphs import traced_one

_widths = iter(range(128, 1024, 16))


class Layer(nn.Module):
    """Two products of one layer, of a width that no other test has."""

    def __init__(self, inner: int = 256) -> None:
        super().__init__()
        self.width = next(_widths)
        self.up = nn.Linear(self.width, inner)
        self.down = nn.Linear(inner, self.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(nn.functional.gelu(self.up(x)))).softmax(-1)

    def inputs(self, rows: int = 16) -> torch.Tensor:
        return torch.randn(rows, self.width)


@dataclass
class Client:
    """This process as a new client with a disk tier of its own."""

    monkeypatch: pytest.MonkeyPatch
    endpoint: str
    disk: Path

    def begin(self, disk: str, **options: object) -> None:
        """As a new process, with the options of its models."""
        TUNER.clear()
        torch._dynamo.reset()
        counters.reset()
        self.monkeypatch.setattr(finder, "_store", ProgramStore())
        self.monkeypatch.setenv("KERNELFARM_DISK_CACHE_DIR", str(self.disk / disk))
        stated = {"endpoint": self.endpoint, "products": "tuned", "autotune_limit_s": 0.4}
        self.options = {**stated, **options}

    def compiled(self, model: nn.Module) -> nn.Module:
        found: nn.Module = torch.compile(model, backend="kernelfarm", options=self.options)
        return found


@pytest.fixture
def client(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    yield Client(monkeypatch, farm.endpoint, tmp_path)
    TUNER.clear()


def counted(name: str) -> int:
    return counters.snapshot().get(name, 0)


def is_swapped() -> bool:
    return counted("runner.programs_replaced") == 1


def subjects_of(captured: CapturedGraph) -> tuple[ProductSubject, ...]:
    support = host_support()
    timer = timer_of(support, captured)
    assert timer is not None
    return product_subjects(captured, support, CompileOptions(), timer)


def reported(endpoint: str, captured: CapturedGraph, winner: int, clients: int = 3) -> None:
    """Lets clients report that a candidate is a hundred times as fast as the others."""
    times_ms = [1.0 if number == winner else 100.0 for number in range(len(CANDIDATES))]
    with connect(endpoint, TIMEOUT_S) as farm:
        for subject in subjects_of(captured):
            for _ in range(clients):
                FarmTuning(farm, reporter=ReporterName()).report(subject.tuned, times_ms)


def test_one_client_measures_and_later_ones_begin_with_the_winners(client: Client) -> None:
    model = Layer()
    x = model.inputs()
    with torch.no_grad():
        expected = model(x)
        client.begin("first")
        first = client.compiled(model)
        torch.testing.assert_close(first(x), expected)
        assert counted("tuning.products.auto") == 1
        called = 0
        while not is_swapped():  # calls go on while the client measures and swaps the program
            torch.testing.assert_close(first(x), expected)
            called += 1
            assert called < 100_000
        torch.testing.assert_close(first(x), expected)
        assert counted("tuning.products.measured") == counted("tuning.measured") == 2
        assert counted("tuning.products.errors") == 0
        wait_until(lambda: counted("tuning.fleet.reported") == 2, TIMEOUT_S, "the reports")

        for disk, traces in (("second", 0), ("first", 1)):  # the last one does not trace, either
            client.begin(disk, autotune="first")
            torch.testing.assert_close(client.compiled(model)(x), expected)
            assert counted("tuning.products.tuned") == 1
            assert counted("warm.hits") == traces
            assert counted("farm.misses") == counted("tuning.products.auto") == 0
            TUNER.clear()
            assert counted("tuning.measured") == counted("runner.programs_replaced") == 0


@pytest.mark.parametrize("winner", range(len(CANDIDATES)))
def test_reports_choose_a_program_and_change_no_results(client: Client, winner: int) -> None:
    """Whatever clients report, also wrong times: both programs are right."""
    model = Layer()
    x = model.inputs()
    with torch.no_grad():
        captured = traced_one(model, x)
        reported(client.endpoint, captured, winner)
        client.begin("reader")
        torch.testing.assert_close(client.compiled(model)(x), model(x))
    assert counted("tuning.products.tuned") == 1
    assert not counted("tuning.measured") and not counted("runner.programs_replaced")
    ((loaded),) = [made.result() for made in finder._store._programs.values()]
    externs = [step for step in loaded.plan.steps if isinstance(step, ExternCall)]
    assert len(externs) == (2 if CANDIDATES[winner] is ProductChoice.LIBRARY else 0)


def test_winners_that_change_replace_the_program_once_they_are_final(client: Client) -> None:
    model = Layer()
    x = model.inputs()
    with torch.no_grad():
        captured = traced_one(model, x)
        reported(client.endpoint, captured, 0, clients=1)
        client.begin("reader", autotune="first")
        fast = client.compiled(model)
        torch.testing.assert_close(fast(x), model(x))
        assert counted("tuning.products.tuned") == 1
        reported(client.endpoint, captured, 1, clients=8)
        wait_until(is_swapped, TIMEOUT_S, "the other program")
        torch.testing.assert_close(fast(x), model(x))
    assert counted("tuning.measured") == 0


def test_gradients_of_tuned_products_are_those_of_eager(client: Client) -> None:
    model = Layer()
    x = model.inputs()

    def gradients(call: nn.Module) -> list[torch.Tensor]:
        return list(torch.autograd.grad(call(x).square().sum(), [*model.parameters()]))

    client.begin("training")
    fast = client.compiled(model)
    for is_last in (False, True):
        torch.testing.assert_close(gradients(fast), gradients(model))
        if not is_last:
            replaced = lambda: counted("runner.programs_replaced") == 2  # noqa: E731
            wait_until(replaced, TIMEOUT_S, "both programs")


@pytest.mark.parametrize("rows", [1, 16])
def test_products_of_a_frozen_model_are_tuned(client: Client, rows: int) -> None:
    """Those by weights that are not packed for the framework's library."""
    known = target_facts(host_cpu_target()).frozen_products
    if rows > 1 and "f32" not in known.in_tiles:
        pytest.skip("NOT RUN: this processor's target leaves such products to the library")
    inner = 256 + known.least_weight_bytes // (4 * 128)
    model = Layer(inner).eval()
    x = model.inputs(rows)
    with torch.no_grad():
        client.begin("frozen", freezing=True)
        fast = client.compiled(model)
        torch.testing.assert_close(fast(x), model(x))
        wait_until(is_swapped, TIMEOUT_S, "the program")
        torch.testing.assert_close(fast(x), model(x))
    assert counted("tuning.products.measured") == 2


def test_candidates_that_are_one_program_are_not_measured(client: Client) -> None:
    """No kernel computes products of f64: the reports say that both candidates take as long."""
    model = Layer().double()
    x = model.inputs().double()
    with torch.no_grad():
        client.begin("double")
        fast = client.compiled(model)
        torch.testing.assert_close(fast(x), model(x))
        wait_until(is_swapped, TIMEOUT_S, "the program")
        torch.testing.assert_close(fast(x), model(x))
    assert (counted("tuning.products.same"), counted("tuning.measured")) == (2, 0)


def test_a_farm_without_an_answer_leaves_what_was_not_measured(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = TamperingFarm(client.endpoint)  # as a farm that knows no tuning
    client.endpoint = old.start()
    model = Layer()
    x = model.inputs()
    try:
        with torch.no_grad():
            client.begin("alone")
            torch.testing.assert_close(client.compiled(model)(x), model(x))
            wait_until(lambda: _failures() >= 4, TIMEOUT_S, "another look-up")
    finally:
        old.stop()
    assert counted("tuning.products.auto") == 1
    assert not counted("tuning.measured") and not counted("runner.programs_replaced")


def _failures() -> int:
    found = counters.snapshot().items()
    return sum(n for name, n in found if name.startswith("tuning.fleet.failures."))


class Runner:
    """Owns the method that swaps a program."""

    def __init__(self) -> None:
        self.swapped: list[PlanRunner] = []

    def swap(self, program: PlanRunner) -> bool:
        self.swapped.append(program)
        return True


def test_a_program_that_comes_late_is_requested_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_products, "PAUSE_AFTER_FAILURE_S", 0.0)
    model = Layer()
    with torch.no_grad():
        captured = traced_one(model, model.inputs())
    reported(client.endpoint, captured, 1)
    client.begin("late")
    settings = client_settings(endpoint=client.endpoint)
    access, support = finder.access_to(settings), host_support()
    asked: list[CompileOptions] = []

    def find(options: CompileOptions) -> PlanRunner:
        asked.append(options)
        if len(asked) < 3:
            raise DeadlineError("the farm goes on compiling")
        loaded = ProgramStore().program(access, captured, support, options)
        return PlanRunner(loaded.for_graph(captured, support.loader))

    runner = Runner()
    graph = GraphToTune(captured, support, CompileOptions())
    tuned = TunedProducts(graph, lambda: access, find, runner.swap)
    assert tuned.program() is None
    tuned.go_on()
    wait_until(lambda: len(runner.swapped) == 1, TIMEOUT_S, "the program")
    assert len(asked) == 3 and len({options.node_choices for options in asked}) == 1
    assert counted("tuning.products.failures.deadline_exceeded") == 2


def test_a_bug_in_tuning_leaves_the_program_that_nobody_measured() -> None:
    def broken() -> FarmAccess:
        raise RuntimeError("a bug")

    def find(options: CompileOptions) -> PlanRunner:
        raise AssertionError(f"asked for {options}")

    counters.reset()
    model = Layer()
    with torch.no_grad():
        graph = GraphToTune(traced_one(model, model.inputs()), host_support(), CompileOptions())
    runner = Runner()
    tuned = TunedProducts(graph, broken, find, runner.swap)
    for _ in range(2):
        assert tuned.program() is None
        tuned.go_on()
    assert not tuned.turn() and not runner.swapped
    assert counted("tuning.products.errors") == 1


def test_a_graph_without_products_asks_nobody(client: Client) -> None:
    x = torch.randn(7, 33)
    client.begin("none")
    fast = torch.compile(lambda x: (x * 3.5).sin(), backend="kernelfarm", options=client.options)
    torch.testing.assert_close(fast(x), (x * 3.5).sin())
    assert not any(name.startswith("tuning.") for name in counters.snapshot())


def test_tuned_products_are_refused_with_cuda_graphs(client: Client) -> None:
    client.begin("recorded", cuda_graphs=True)
    model = Layer()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        client.compiled(model)(model.inputs())
    assert isinstance(caught.value.inner_exception, CallerError)
    assert "'tuned' with CUDA graphs" in str(caught.value.inner_exception)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([(99, "own")], "of node 99 .* expected one of aten.addmm.default, aten.mm.default"),
        ([(0, "own")], "of node 0 "),
        ([(1, "own"), (1, "own")], "expected each node once"),
        ([(4, "own"), (1, "library")], "of node 4, then of node 1; expected each node once"),
        ([(1, "auto")], "of node 1; expected the library or kernels"),
    ],
)
def test_choices_that_do_not_fit_the_graph_are_refused(
    client: Client, choices: list[tuple[int, str]], message: str
) -> None:
    model = Layer()
    with torch.no_grad():
        graph = traced_one(model, model.inputs()).graph
    stated = tuple(NodeChoice(node, ProductChoice(choice)) for node, choice in choices)
    options = CompileOptions(node_choices=stated)
    with (
        connect(client.endpoint, TIMEOUT_S) as farm,
        pytest.raises((CallerError, MalformedMessageError), match=message) as found,
    ):
        farm.compile(graph, [host_support().target], options=options)
    assert found.value.status == "INVALID_ARGUMENT"
