"""The options of a request that change the code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The fields of `kernelfarm.v1.CompileOptions`; every field is part of the program key."""

    is_deterministic: bool = False
    fallback_random: bool = False

    def key_pairs(self) -> tuple[tuple[str, str], ...]:
        """The options as program keys contain them: (field of the message, text), sorted."""
        return (
            ("deterministic", str(self.is_deterministic)),
            ("fallback_random", str(self.fallback_random)),
        )
