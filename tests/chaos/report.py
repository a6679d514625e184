"""The results of a chaos run, by fault."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.chaos.run import SERVICE_LIMIT_S, Episode

_FINE = frozenset({"OK", "EAGER"})
_QUOTED = 3
_EXPECTED = frozenset({"INVALID_ARGUMENT"})
"""Graphs that must be refused."""


def table(episodes: Sequence[Episode]) -> Iterator[str]:
    """A Markdown table with a line for each fault and layout."""
    yield (
        "| fault | layout | times | s to service: least, median, most | answers right |"
        " wrong | without an answer | ran eager | errors by status | holds |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|---|"
    by_fault: dict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_fault[episode.fault, episode.layout].append(episode)
    for (fault, layout), group in sorted(by_fault.items()):
        yield _line(fault, layout, group)
    yield _line("all", "", episodes)


def _line(fault: str, layout: str, group: Sequence[Episode]) -> str:
    statuses = sum((episode.statuses for episode in group), Counter[str]())
    errors = ", ".join(
        f"{count} {status}"
        for status, count in statuses.most_common()
        if status not in _FINE | _EXPECTED
    )
    return (
        f"| {fault} | {layout} | {len(group)} | {_times(group)} |"
        f" {sum(episode.right for episode in group)} |"
        f" {sum(len(episode.wrong) for episode in group)} |"
        f" {sum(len(episode.late) for episode in group)} |"
        f" {statuses['EAGER']} | {errors or 'none'} |"
        f" {'yes' if all(episode.holds for episode in group) else 'NO'} |"
    )


def _times(group: Sequence[Episode]) -> str:
    served = sorted(e.service_s for e in group if e.service_s is not None)
    if not served:
        return "never"
    most = f"{served[-1]:.1f}" if len(served) == len(group) else "never"
    return f"{served[0]:.1f}, {statistics.median(served):.1f}, {most}"


def one_line(episode: Episode) -> str:
    """The result of an episode, in one line."""
    service = "never" if episode.service_s is None else f"{episode.service_s:.1f} s"
    parts = [f"{episode.fault} ({episode.layout}): service after {service}"]
    parts.append(", ".join(f"{n} {status}" for status, n in episode.statuses.most_common()))
    parts += [f"WRONG {text}" for text in episode.wrong[:3]]
    parts += [f"LATE {text}" for text in episode.late[:3]]
    parts += episode.notes
    return "; ".join(parts)


def broken_rules(episodes: Sequence[Episode], dead_clients: Sequence[str]) -> list[str]:
    """All violations of the rules, one line each."""
    broken = [f"a client ended: {name}" for name in dead_clients]
    for episode in episodes:
        where = f"{episode.fault} ({episode.layout})"
        broken += [f"{where}: a wrong answer: {text}" for text in episode.wrong]
        broken += [f"{where}: our bug: {text}" for text in episode.bugs[:_QUOTED]]
        broken += [f"{where}: no answer in time: {text}" for text in episode.late]
        if episode.service_s is None or episode.service_s > SERVICE_LIMIT_S:
            broken.append(f"{where}: no service within {SERVICE_LIMIT_S:.0f} s")
    return broken
