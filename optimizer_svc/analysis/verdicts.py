"""Refusals as values, so that a report can say why two loops did not become one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """An analysis said no; `reason` completes the sentence `not fused: ...`."""

    reason: str
