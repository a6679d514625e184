"""The child process that tries inputs one after another; its parent watches it.

It writes the number of the present input, and the input itself, to a shared file, so that the
parent knows both if it must kill the child. Results go to stdout, one line of JSON each.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import re
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.cases import case_bytes
from tests.fuzz.corpus import keep
from tests.fuzz.trials import TRIALS, Trial, attempt
from tests.fuzz.valid_messages import valid_messages

HEADER_BYTES = 16
SHARED_BYTES = 4 << 20
REPORT_EVERY = 200
_VARYING = re.compile(r"'.*'|\".*\"|[-\w]*\d[-\w]*")
_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Work:
    """The inputs of a child: every `step`-th number from `first` on, until the time is up."""

    seed: int
    trials: tuple[Trial, ...]
    first: int
    step: int
    end: int
    until_s: float
    failures: Path


class Shared:
    """The file with the child's present input."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SHARED_BYTES)

    def begin(self, number: int, data: bytes) -> None:
        kept = data[: SHARED_BYTES - HEADER_BYTES]
        self._map[HEADER_BYTES : HEADER_BYTES + len(kept)] = kept
        self._map[:HEADER_BYTES] = number.to_bytes(8, "little") + len(kept).to_bytes(8, "little")

    def now(self) -> tuple[int, bytes]:
        """The number and the bytes of the present input."""
        header = self._map[:HEADER_BYTES]
        length = int.from_bytes(header[8:], "little")
        number = int.from_bytes(header[:8], "little")
        return number, bytes(self._map[HEADER_BYTES : HEADER_BYTES + length])


def input_of(work: Work, number: int) -> tuple[Trial, bytes]:
    """The trial and the bytes of an input number."""
    trial = work.trials[number % len(work.trials)]
    bases = valid_messages(trial.message, trial.file)
    base = Random(f"{work.seed}:{number}").choice(bases)
    return trial, case_bytes(work.seed, number, base, trial.message)


def run(work: Work, shared: Shared) -> None:
    """Tries the inputs, and writes their results."""
    results: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    number = work.first
    while number < work.end and time.time() < work.until_s:
        trial, data = input_of(work, number)
        shared.begin(number, data)
        began_s = time.process_time()
        results[f"{trial.name} {_outcome(work, trial, data)}"] += 1
        took_s = time.process_time() - began_s
        slowest[trial.name] = max(slowest.get(trial.name, 0.0), took_s)
        number += work.step
        if sum(results.values()) >= REPORT_EVERY:
            _report({"results": results, "slowest": slowest, "next": number})
            results.clear()
    _report({"results": results, "slowest": slowest, "next": number, "done": True})


def _outcome(work: Work, trial: Trial, data: bytes) -> str:
    try:
        return attempt(trial, data)
    except Exception as error:
        path = keep(trial.message, data, work.failures, trial.name)
        _report({"failure": signature_of(trial, error), "path": str(path)})
        return "FAILED"


def signature_of(trial: Trial, error: BaseException) -> str:
    """The location and kind of a failure: equal for inputs with the same fault."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _ROOT in f.filename]
    ours = [f for f in frames if "/tests/" not in f.filename] or frames
    position = f"{ours[-1].filename.removeprefix(_ROOT + '/')}:{ours[-1].name}" if ours else "?"
    said = _VARYING.sub("_", str(error))[:120]
    return f"{trial.name}: {type(error).__name__} in {position}: {said}"


def _report(fact: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("seed", "first", "step", "end"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--trials", required=True)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--failures", type=Path, required=True)
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    names = args.trials.split(",")
    trials = tuple(trial for trial in TRIALS if trial.name in names)
    work = Work(args.seed, trials, args.first, args.step, args.end, args.until, args.failures)
    run(work, Shared(args.shared))


if __name__ == "__main__":
    main()
