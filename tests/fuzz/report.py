"""Tables of a run's results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.fuzz.farm_run import FarmFindings
from tests.fuzz.farm_state import FarmState
from tests.fuzz.trial_runner import Findings


def trial_table(findings: Findings) -> str:
    """One line for each trial, then each kind of failure with one input."""
    by_trial: dict[str, dict[str, int]] = defaultdict(dict)
    for key, count in sorted(findings.results.items()):
        name, _, outcome = key.partition(" ")
        by_trial[name][outcome] = count
    lines = [f"{'trial':12} {'inputs':>8} {'slowest s':>9}  outcomes"]
    for name, outcomes in by_trial.items():
        slowest_s = findings.slowest.get(name, 0.0)
        reported = _counts(outcomes.items())
        lines.append(f"{name:12} {sum(outcomes.values()):8} {slowest_s:9.2f}  {reported}")
    return "\n".join((*lines, *failure_lines(findings.failures)))


def rpc_table(findings: FarmFindings) -> str:
    """One line for each RPC: messages, times in ms, statuses; then each kind of failure."""
    lines = [f"{'RPC':20} {'messages':>8} {'p50':>7} {'p99':>8} {'max ms':>8}  statuses"]
    for name, times_s in sorted(findings.times_s.items()):
        figures = " ".join(
            f"{_quantile(times_s, q) * 1e3:{width}.1f}"
            for q, width in ((0.5, 7), (0.99, 8), (1, 8))
        )
        reported = _counts(findings.statuses[name].items())
        lines.append(f"{name:20} {len(times_s):8} {figures}  {reported}")
    rate = findings.sent / max(findings.took_s, 1e-9)
    lines.append(f"{findings.sent} messages in {findings.took_s:.0f} s, {rate:.0f} a second")
    return "\n".join((*lines, *failure_lines(findings.failures)))


def memory_table(state: FarmState) -> str:
    """Memory of each child: peak and at the end, in MiB."""
    lines = [f"{'process':20} {'peak MiB':>9} {'end MiB':>9}"]
    for name, peak in sorted(state.peak_bytes.items()):
        lines.append(f"{name:20} {peak / 2**20:9.0f} {state.last_bytes[name] / 2**20:9.0f}")
    return "\n".join(lines)


def failure_lines(failures: dict[str, list[str]]) -> list[str]:
    """Each kind of failure with its count and one input."""
    return [
        f"{len(paths):5} x {what}\n        {paths[0]}" for what, paths in sorted(failures.items())
    ]


def _counts(items: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(items))


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
