"""Checks the targets that a request names."""

from __future__ import annotations

from kernelfarm.errors import CallerError
from kernelfarm.targets import target_facts
from kernelfarm.wire.names import checked_name

MAX_TARGETS = 64
"""Targets of one request; fewer chips than that exist."""


def check_targets(targets: tuple[str, ...]) -> None:
    """Checks the targets of a request before any work is done for it.

    Raises:
        CallerError: no target, too many targets, or one target twice.
        MalformedMessageError: a name that is too long.
        UnknownTargetError: a target that this farm does not know.
    """
    if not targets:
        raise CallerError("no target: expected at least one descriptor such as 'cpu:x86-64-v3'")
    if len(targets) > MAX_TARGETS:
        raise CallerError(f"{len(targets)} targets; expected at most {MAX_TARGETS}")
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise CallerError(f"target {twice[0]!r} is named twice; expected each at most once")
    for target in targets:
        target_facts(checked_name(target, "a target"))
