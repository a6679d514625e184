"""`python -m tests.sweep run|report|retry`: see `--help`."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from kernelfarm.dtypes import DType
from tests.sweep.records import BROKEN, Outcome, Record, ResultFile
from tests.sweep.report import write_report
from tests.sweep.samples import DTYPES, Task, tasks
from tests.sweep.supervise import Limits, Sweep

DEFAULT_OUT = Path(tempfile.gettempdir()) / "kernelfarm_sweep.jsonl"
DEFAULT_REPORT = Path(__file__).parents[2] / "docs" / "operator_database.md"
RETRIED = BROKEN | {Outcome.REFUSED, Outcome.RAISES}


def main() -> None:
    """The command line."""
    options = _options()
    results = ResultFile(options.out)
    if options.command == "report":
        write_report(results.records(), options.report, options.note)
        return
    mode = "backward" if options.backward else "forward"
    dtypes = [DType(d) for d in options.dtype.split(",")] if options.dtype else DTYPES
    reference = list(tasks(mode, dtypes, options.ops))
    recorded: dict[Task, set[int]] = defaultdict(set)
    if options.command == "retry":
        again = {r.task for r in results.records() if r.outcome in RETRIED}
        reference = [task for task in reference if task in again]
    else:
        done = results.done()
        reference = [task for task in reference if task not in done]
        for record in results.records():
            recorded[record.task].add(record.sample)
    limits = Limits(options.count, options.sample_s, options.budget_s)
    sweep = Sweep(results.append, limits, options.seed, options.farm)
    finished = sweep.run(reference, recorded)
    chosen = [r for r in results.records() if r.mode == mode]
    print(f"{finished} of {len(reference)} tasks finished; {_summary(chosen)}; {options.out}")


def _summary(records: list[Record]) -> str:
    counts = Counter(record.outcome.value for record in records)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("command", choices=("run", "report", "retry"))
    parser.add_argument("--ops", default="", help="regular expression of operator names")
    parser.add_argument("--dtype", default="", help="element types by our names, with commas")
    parser.add_argument("--backward", action="store_true", help="with gradients")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--sample-s", type=float, default=60.0, help="longest time of a sample")
    parser.add_argument("--count", type=int, default=8, help="samples of an operator and type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--farm", default="", help="endpoint of a farm; else all in one process")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--note", default="", help="a sentence for the report's head")
    parser.add_argument("--report", type=Path, default=DEFAULT_REPORT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
