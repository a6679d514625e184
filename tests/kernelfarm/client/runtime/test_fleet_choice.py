"""Autotuned kernels in a fleet: few clients measure, all launch the winner, and none waits long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.tuning_client import FarmTuning, ReporterName
from kernelfarm.client.loaders.tuned_kernels import MEASURE, Advice
from kernelfarm.client.runtime import fleet_choice
from kernelfarm.client.runtime.fleet_choice import MOST_WAIT_S, FleetChoice
from kernelfarm.client.runtime.program import TuningPolicy
from kernelfarm.client.runtime.tuning import WINNERS
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import DeadlineError, KernelfarmError, UnavailableError
from kernelfarm.tuning import TuningSubject
from tests.support.farm import Farm, wait_until
from tests.support.simulated_device import SimulatedDevice, added, compiled_for

KERNEL = TuningSubject(bytes(32), "a chip, driver 1", 3)
COSTS_MS = {32: 3.0, 64: 1.0, 128: 2.0}
NO_FARM = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    begin_anew()
    yield
    begin_anew()


def begin_anew() -> None:
    """As in a new process."""
    WINNERS.clear()
    counters.reset()
    torch._dynamo.reset()


@pytest.fixture
def client_of(farm: Farm) -> Iterator[Callable[[], FarmTuning]]:
    """Makes clients of a farm, each with a name of its own among the reports."""
    with FarmClient(ClientSettings(endpoint=farm.endpoint)) as client:
        yield lambda: FarmTuning(client, reporter=ReporterName())


def waits(advice: Advice) -> bool:
    return advice.winner is None and not advice.should_measure


def counted(name: str) -> int:
    return counters.snapshot().get(name, 0)


def test_a_second_process_launches_the_winner_and_measures_nothing(
    client_of: Callable[[], FarmTuning],
) -> None:
    x, y = torch.randn(64), torch.randn(64)
    first = SimulatedDevice(COSTS_MS)
    expected = compiled_for(added, first, tuning=TuningPolicy(fleet=client_of))(x, y)
    assert set(first.launched) == set(COSTS_MS)
    wait_until(lambda: counted("tuning.fleet.reported") == 1, 20, "the report")
    begin_anew()
    second = SimulatedDevice({32: 1.0, 64: 3.0, 128: 3.0})  # its own measurement would differ
    # The second of three clients is asked to measure, too; a client that cannot measure is not.
    second.block = "the stream records a CUDA graph"
    seen = compiled_for(added, second, tuning=TuningPolicy(fleet=client_of))(x, y)
    assert second.launched == [64]
    assert torch.equal(seen, expected)
    assert counted("tuning.measured") == 0


@pytest.mark.usefixtures("prompt_repetitions")
def test_without_a_farm_a_client_measures_for_itself() -> None:
    device = SimulatedDevice(COSTS_MS)
    with FarmClient(ClientSettings(endpoint=NO_FARM)) as client:
        policy = TuningPolicy(fleet=lambda: FarmTuning(client))
        compiled_for(added, device, tuning=policy)(torch.randn(64), torch.randn(64))
    assert device.launched[-1] == 64
    assert counted("tuning.measured") == 1
    failures = {name for name in counters.snapshot() if name.startswith("tuning.fleet.")}
    assert len(failures) == 1 and "tuning.fleet.failures." in failures.pop()


def test_times_of_other_devices_are_not_used(client_of: Callable[[], FarmTuning]) -> None:
    tuned = [TuningSubject(b"\1" * 32, f"a chip, driver {number}", 3) for number in range(2)]
    client_of().report(tuned[0], (3.0, 1.0, 2.0))
    assert client_of().advice(tuned[0], can_measure=False).winner == 1
    assert client_of().advice(tuned[1], can_measure=False).winner is None


class _Fleet:
    """A fleet that answers as stated, for the order of questions; the farm is tested above."""

    def __init__(self, *answers: Advice | KernelfarmError) -> None:
        self.answers = list(answers)
        self.asked: list[bool] = []

    def advice(self, tuned: TuningSubject, *, can_measure: bool) -> Advice:
        self.asked.append(can_measure)
        if not self.answers:
            raise UnavailableError("away")
        answer = self.answers.pop(0)
        if isinstance(answer, KernelfarmError):
            raise answer
        return answer

    def report(self, tuned: TuningSubject, times_ms: Sequence[float]) -> None:
        raise UnavailableError("away")


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs background work at once, so that its order is known."""
    monkeypatch.setattr(fleet_choice, "_in_background", lambda run: run())


@pytest.mark.usefixtures("inline")
def test_while_others_measure_it_asks_again_after_the_stated_time() -> None:
    now = [0.0]
    fleet = _Fleet(Advice(retry_after_s=2.0), Advice(retry_after_s=2.0), Advice(winner=1))
    choice = FleetChoice(fleet, KERNEL, "kernel", lambda: now[0])
    assert waits(choice.advice(can_measure=True))
    for now[0] in (0.5, 1.9):
        assert waits(choice.advice(can_measure=True))
    assert len(fleet.asked) == 1
    now[0] = 2.0
    assert waits(choice.advice(can_measure=False))
    now[0] = 4.0
    assert choice.advice(can_measure=True).winner == 1
    assert fleet.asked == [True, False, True]


@pytest.mark.usefixtures("inline")
def test_a_winner_of_few_reports_may_change() -> None:
    now = [0.0]
    fleet = _Fleet(Advice(0, retry_after_s=2.0), Advice(1))
    choice = FleetChoice(fleet, KERNEL, "kernel", lambda: now[0])
    first = choice.advice(can_measure=False)
    now[0] = 2.0
    last = choice.advice(can_measure=False)
    assert (first.winner, first.is_final) == (0, False)
    assert (last.winner, last.is_final) == (1, True)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("last_s", [2.0, MOST_WAIT_S])
def test_a_winner_that_nobody_confirms_is_final_in_the_end(last_s: float) -> None:
    now = [0.0]
    answers = [Advice(2, retry_after_s=2.0)] * (1 if last_s < MOST_WAIT_S else 2)
    choice = FleetChoice(_Fleet(*answers), KERNEL, "kernel", lambda: now[0])
    assert not choice.advice(can_measure=False).is_final
    now[0] = last_s  # the farm is away, or the client has waited long
    assert choice.advice(can_measure=False) == Advice(2)


@pytest.mark.usefixtures("inline")
def test_a_client_that_waited_long_measures() -> None:
    now = [0.0]
    fleet = _Fleet(*[Advice(retry_after_s=10.0)] * 20)
    choice = FleetChoice(fleet, KERNEL, "kernel", lambda: now[0])
    seen = []
    while now[0] <= MOST_WAIT_S:
        seen.append(choice.advice(can_measure=True))
        now[0] += 10.0
    assert all(map(waits, seen[:-1])) and seen[-1] == MEASURE


@pytest.mark.usefixtures("inline")
def test_a_client_of_a_busy_farm_asks_again() -> None:
    now = [0.0]
    fleet = _Fleet(DeadlineError("busy"), Advice(1))
    choice = FleetChoice(fleet, KERNEL, "kernel", lambda: now[0])
    assert waits(choice.advice(can_measure=True))
    now[0] = 10.0
    assert choice.advice(can_measure=True) == Advice(1)
    assert counted("tuning.fleet.failures.deadline_exceeded") == 1


@pytest.mark.usefixtures("inline")
def test_a_report_that_fails_is_counted_and_raises_nothing() -> None:
    choice = FleetChoice(_Fleet(MEASURE), KERNEL, "kernel")
    assert choice.advice(can_measure=True) == MEASURE
    choice.report((1.0, 2.0, 3.0))
    assert counted("tuning.fleet.failures.unavailable") == 1


@pytest.mark.usefixtures("inline")
def test_a_client_that_measures_only_what_it_is_asked_for_waits_without_the_farm() -> None:
    now, alone = [0.0], Advice(retry_after_s=2.0)
    fleet = _Fleet(UnavailableError("away"), MEASURE)
    choice = FleetChoice(fleet, KERNEL, "product", lambda: now[0], alone=alone)
    assert waits(choice.advice(can_measure=True))
    now[0] = 1.0
    assert waits(choice.advice(can_measure=True)) and len(fleet.asked) == 1
    now[0] = 2.0
    assert choice.advice(can_measure=True).should_measure and not choice.has_ended
    now[0] = MOST_WAIT_S
    assert waits(choice.advice(can_measure=True)) and choice.has_ended
