"""`python -m tests.fuzz`: fuzzes codecs and services in process, then every RPC of a farm.

Without `--endpoint` it starts a farm of its own. It prints the seed, a table, and each kind of
failure with one input, and writes failing inputs to the folder `--failures`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from google.protobuf.message import DecodeError

from tests.fuzz.completed_messages import known_facts
from tests.fuzz.corpus import keep
from tests.fuzz.farm_run import FarmFindings, FarmPlan, fuzz_farm
from tests.fuzz.farm_state import FarmState
from tests.fuzz.messages import Rpc, all_rpcs, message_class
from tests.fuzz.minimize import minimized
from tests.fuzz.reference_program import check_new_program
from tests.fuzz.replay import replay, trials_of
from tests.fuzz.report import memory_table, rpc_table, trial_table
from tests.fuzz.trial_runner import Limits, Plan, run_trials
from tests.fuzz.trials import TRIALS, Trial
from tests.support.farm import QUICK_SWEEPS, running_farm

ENOUGH = 10**9


def main() -> int:
    """Fuzzes; the exit status is 1 if anything failed."""
    args = _arguments().parse_args()
    if args.replay or args.minimize:
        return _again(args)
    # As Ctrl-C: the tables show the results so far.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    print(f"seed {args.seed}", flush=True)
    failed = False
    if args.mode in ("codecs", "all"):
        failed = _codecs(args)
    if args.mode in ("rpcs", "all"):
        failed = bool(_rpcs(args).failures) or failed
    return int(failed)


def _codecs(args: argparse.Namespace) -> bool:
    plan = Plan(
        seed=args.seed,
        messages=args.messages,
        seconds=args.seconds,
        trials=tuple(args.trial or [trial.name for trial in TRIALS]),
        failures=args.failures,
        jobs=args.jobs,
        limits=Limits(cpu_s=args.cpu_s),
    )
    findings = run_trials(plan)
    print(trial_table(findings), flush=True)
    return bool(findings.failures)


def _again(args: argparse.Namespace) -> int:
    """Replays one input, and minimizes it with `--minimize`."""
    path: Path = args.minimize or args.replay
    data, limits, failed = path.read_bytes(), Limits(cpu_s=args.cpu_s), False
    for trial in trials_of(path):
        fault = replay(trial, data, limits)
        print(f"{trial.name}: {fault or 'nothing is wrong'}")
        failed = failed or bool(fault)
        if fault and args.minimize:
            small = minimized(trial, data, limits)
            kept = keep(trial.message, small, args.failures, f"{trial.name}-small")
            print(f"{len(data)} bytes made {len(small)}: {kept}\n{_text_of(trial, small)}")
    return int(failed)


def _text_of(trial: Trial, data: bytes) -> str:
    """A message as text; other bytes as a literal."""
    try:
        return str(message_class(trial.message).FromString(data))
    except DecodeError:
        return repr(data)


def _rpcs(args: argparse.Namespace) -> FarmFindings:
    rpcs = tuple(rpc for rpc in all_rpcs() if not args.rpc or rpc.name in args.rpc)
    if args.endpoint:
        public = tuple(rpc for rpc in rpcs if not rpc.is_internal)
        findings = fuzz_farm(_plan(args, public, args.endpoint))
        print(rpc_table(findings))
        return findings
    with tempfile.TemporaryDirectory(prefix="kernelfarm-fuzz-") as folder:
        data_dir = Path(folder)
        with running_farm(data_dir, args.vendors, workers=args.workers, **QUICK_SWEEPS) as farm:
            state, facts = FarmState(data_dir), known_facts(farm, args.vendors.split(","))
            plan = _plan(args, rpcs, farm.endpoint, state=state, change=facts.change)
            findings = fuzz_farm(plan)
            state.measure()
            print(rpc_table(findings), memory_table(state), sep="\n")
            for change in state.changes():
                findings.failures[change] = ["no input is known"]
                print("FAILED", change)
            check_new_program(farm.endpoint)
    return findings


def _plan(
    args: argparse.Namespace, rpcs: tuple[Rpc, ...], endpoint: str, **more: object
) -> FarmPlan:
    return FarmPlan(
        seed=args.seed,
        messages=args.messages,
        seconds=args.seconds,
        endpoint=endpoint,
        failures=args.failures,
        rpcs=rpcs,
        jobs=args.concurrency,
        **more,  # type: ignore[arg-type]
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mode", choices=("codecs", "rpcs", "all"), default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each mode, at most")
    parser.add_argument("--messages", type=int, default=ENOUGH, help="in each mode, at most")
    parser.add_argument("--jobs", type=int, default=1, help="child processes for codecs")
    parser.add_argument("--concurrency", type=int, default=8, help="calls at a time")
    parser.add_argument("--trial", action="append", help="one of the trials of the codecs")
    parser.add_argument("--rpc", action="append", help="one of the RPCs, by its name")
    parser.add_argument("--endpoint", help="of a farm that runs: its public RPCs are called")
    parser.add_argument("--vendors", default="cpu", help="of the farm that is started")
    parser.add_argument("--workers", type=int, default=2, help="of the farm that is started")
    parser.add_argument("--cpu-s", type=float, default=10.0, help="processor time of one input")
    parser.add_argument("--replay", type=Path, help="a file TYPE/NAME.pb: takes it once more")
    parser.add_argument("--minimize", type=Path, help="a file TYPE/NAME.pb: makes it small")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
