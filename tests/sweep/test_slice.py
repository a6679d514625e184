"""A random slice of the sweep; the seed is printed and can be set again, see `settings`."""

from __future__ import annotations

import json
import random

import pytest

from tests.sweep.records import BROKEN, Outcome, Record, record_from
from tests.sweep.samples import tasks
from tests.sweep.settings import SEED_VARIABLE, slice_seed
from tests.sweep.supervise import Limits, Sweep

PAIRS = 24
SAMPLES = 2
BUDGET_S = 35.0


# slow: another seed in each run, so that a failure need not come from the change under test.
@pytest.mark.slow
def test_random_operators_give_what_eager_gives(capsys: pytest.CaptureFixture[str]) -> None:
    seed = slice_seed()
    with capsys.disabled():
        print(f" [operator slice: {SEED_VARIABLE}={seed}]", end="")
    rng = random.Random(seed)
    everything = {mode: list(tasks(mode)) for mode in ("forward", "backward")}
    chosen = [rng.choice(everything[rng.choice(("forward", "backward"))]) for _ in range(PAIRS)]
    lines: list[str] = []
    limits = Limits(SAMPLES, sample_s=120.0, budget_s=BUDGET_S)
    finished = Sweep(lines.append, limits, seed).run(chosen, {})
    assert finished
    records = [record_from(f) for f in map(json.loads, lines) if "done" not in f]
    bad = [_text(r) for r in records if r.outcome in BROKEN or r.outcome is Outcome.RAISES]
    assert not bad, "\n".join([f"{SEED_VARIABLE}={seed}", *bad])


def _text(record: Record) -> str:
    where = f"{record.op} {record.dtype} {record.mode} sample {record.sample}"
    return f"{where}: {record.outcome.value}: {record.reason}"
