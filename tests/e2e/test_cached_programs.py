"""A program that was compiled once is not compiled again, for any client."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelfarm.v1 import compile_service_pb2 as api
from tests.e2e.compiled_inputs import ONE_OF_EACH_VENDOR, Everything, compile_everything, is_slow
from tests.support.calls import compile_at
from tests.support.farm import Farm
from tests.support.small_graphs import h_request
from tests.support.torch_children import run_python

COMPILE_IN_A_NEW_PROCESS = """
import json, sys
from tests.e2e.compiled_inputs import compile_everything
programs = compile_everything(sys.argv[1], is_whole=sys.argv[2] == "True").programs
rows = [[*of, p.key.hex(), p.outcome, p.codegen_jobs] for of, p in programs.items()]
print(json.dumps([hash("seed"), rows]))
"""


def results_of(everything: Everything) -> list[tuple[str, str, str, str, int]]:
    """Input, target, key, outcome and jobs of every program."""
    found = everything.programs.items()
    return [(name, target, p.key.hex(), p.outcome, p.codegen_jobs) for (name, target), p in found]


def hits_of(everything: Everything) -> list[tuple[str, str, str, str, int]]:
    """The results of a client after everything was compiled."""
    return [(name, target, key, "hit", 0) for name, target, key, _, _ in results_of(everything)]


def is_whole(everything: Everything) -> bool:
    return any(is_slow(*of) for of in everything.programs)


def test_the_first_pass_compiled_everything(everything: Everything) -> None:
    assert {outcome for *_, outcome, _ in results_of(everything)} <= {"miss", "hit"}
    assert sum(jobs for *_, jobs in results_of(everything)) > 0


def test_the_second_pass_of_the_same_process_causes_no_job(everything: Everything) -> None:
    again = compile_everything(everything.endpoint, is_whole=is_whole(everything))
    assert results_of(again) == hits_of(everything)
    for of, program in again.programs.items():
        assert program.plan == everything.programs[of].plan


# slow: `make demo` does the same; in every run, the second pass of one process causes no job.
@pytest.mark.slow
def test_a_pass_of_a_new_process_causes_no_job(everything: Everything) -> None:
    asked = (everything.endpoint, str(is_whole(everything)))
    seedless = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = run_python(("-c", COMPILE_IN_A_NEW_PROCESS, *asked), seedless)
    assert done.returncode == 0, done.stderr[-3000:]
    hashed, rows = json.loads(done.stdout)
    assert hashed != hash("seed")  # another order of sets must not change keys
    assert [tuple(row) for row in rows] == hits_of(everything)


def test_ten_clients_of_a_new_program_make_one_set_of_jobs_for_each_vendor(
    vendor_farm: Farm,
) -> None:
    request = h_request(48, 80, *ONE_OF_EACH_VENDOR)
    with ThreadPoolExecutor(10) as pool:  # each call opens its own channel
        calls = [pool.submit(compile_at, vendor_farm.endpoint, request) for _ in range(10)]
        answers = [call.result().programs for call in calls]
    for target in ONE_OF_EACH_VENDOR:
        programs = [p for answer in answers for p in answer if p.target == target]
        assert len(programs) == 10
        assert [p.outcome for p in programs].count(api.CACHE_OUTCOME_MISS) == 1
        assert sum(p.codegen_jobs for p in programs) == len(programs[0].plan.kernels)
        assert {artifact_digests(p) for p in programs} == {artifact_digests(programs[0])}


def artifact_digests(program: api.ProgramResult) -> tuple[bytes, ...]:
    return tuple(stage.blob.sha256 for a in program.artifacts for stage in a.stages)
