"""Refusals as values, so that the report can say why two loops were not fused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal; `reason` completes the sentence `not fused: ...`."""

    reason: str
