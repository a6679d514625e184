"""Seconds of fuzzing in each default run; `python -m tests.fuzz` does the same for hours.

`KERNELFARM_FUZZ_SEED` sets the seed of the inputs; each failure shows it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz.completed_messages import known_facts
from tests.fuzz.corpus import regressions
from tests.fuzz.farm_call import Bounds
from tests.fuzz.farm_run import SHARES, FarmPlan, fuzz_farm
from tests.fuzz.farm_state import FarmState
from tests.fuzz.messages import all_rpcs
from tests.fuzz.reference_program import check_new_program
from tests.fuzz.replay import replay_files, trials_of
from tests.fuzz.report import memory_table, rpc_table, trial_table
from tests.fuzz.trial_runner import Limits, Plan, run_trials
from tests.fuzz.trials import TRIALS, Trial, attempt
from tests.fuzz.valid_messages import is_described, valid_messages
from tests.support.farm import Farm

SEED = int(os.environ.get("KERNELFARM_FUZZ_SEED", "20261122"))
# Numbers of inputs, of some seconds of processor time; the slow ones are more and take longer.
CODEC_MESSAGES = [2_500, pytest.param(40_000, marks=pytest.mark.slow)]
RPC_MESSAGES = [500, pytest.param(8_000, marks=pytest.mark.slow)]
MOST_SECONDS = 60.0
MAX_PROCESS_BYTES = 2 << 30
# Inputs that use the whole work budget take seconds.
FILES = tuple(path for _, path in regressions() if trials_of(path))  # others go to a farm
QUICK = tuple(path for path in FILES if not path.stem.startswith("slow-"))
REPLAYED = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path not in QUICK))
    for path in FILES
]
# The machine may be busy: only calls that hang fail here. `python -m tests.fuzz` has a bound of two
# seconds.
WIDE_BOUNDS = Bounds(call_s=30.0, long_s=120.0)


def test_every_rpc_of_every_service_is_called_with_messages_that_have_content() -> None:
    rpcs = all_rpcs()
    services = {rpc.service for rpc in rpcs}
    assert {
        "CompileService",
        "CacheService",
        "TraceService",
        "TuningService",
        "OptimizerService",
    } < {service.rpartition(".")[2] for service in services}
    bare = [rpc.path for rpc in rpcs if not is_described(rpc.request.DESCRIPTOR.full_name)]
    assert not bare, f"describe valid requests of {bare} in valid_messages.py"
    assert set(SHARES) <= {rpc.name for rpc in rpcs}


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_valid_messages_are_accepted_and_stay_the_same(trial: Trial) -> None:
    for data in valid_messages(trial.message, trial.file)[::40]:
        assert attempt(trial, data) == "accepted"


@cache
def replayed(paths: tuple[Path, ...]) -> dict[str, list[str]]:
    return replay_files(paths, cpu_s=20)


@pytest.mark.parametrize("path", REPLAYED)
def test_inputs_that_once_failed_are_refused_or_accepted_in_time(path: Path) -> None:
    is_quick = path in QUICK
    faults = replayed(QUICK if is_quick else (path,))[str(path)]
    assert faults and not any(faults)


@pytest.mark.parametrize("messages", CODEC_MESSAGES)
def test_codecs_and_services_take_mutated_messages(messages: int, tmp_path: Path) -> None:
    names = tuple(trial.name for trial in TRIALS)
    plan = Plan(SEED, messages, MOST_SECONDS, names, tmp_path, limits=Limits(cpu_s=30))
    findings = run_trials(plan)
    reported = f"seed {SEED}\n{trial_table(findings)}"
    print(reported)
    assert not findings.failures, reported
    assert findings.taken > len(TRIALS), reported


@pytest.mark.parametrize("messages", RPC_MESSAGES)
def test_every_rpc_of_a_farm_takes_mutated_messages(
    messages: int, farm: Farm, tmp_path: Path
) -> None:
    state, facts = FarmState(farm.data_dir), known_facts(farm)
    findings = fuzz_farm(
        FarmPlan(
            seed=SEED,
            messages=messages,
            seconds=MOST_SECONDS,
            endpoint=farm.endpoint,
            failures=tmp_path,
            state=state,
            jobs=4,
            bounds=WIDE_BOUNDS,
            change=facts.change,
        )
    )
    state.measure()
    reported = f"seed {SEED}\n{rpc_table(findings)}\n{memory_table(state)}"
    print(reported)
    assert not findings.failures, reported
    assert not state.changes(), reported
    assert max(state.last_bytes.values()) < MAX_PROCESS_BYTES, reported
    check_new_program(farm.endpoint)
