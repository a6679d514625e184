"""Options that change the code, as a request states them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Every field is part of a program's key.

    `is_deterministic`: results do not depend on scheduling. `fallback_random`: random operators are
    the framework's, so that their numbers are those of eager execution; otherwise they are the
    farm's own, which are equal on every device and fuse with their neighbours.
    """

    is_deterministic: bool = False
    fallback_random: bool = False

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The options as sorted text, for a key."""
        return (
            ("deterministic", str(self.is_deterministic)),
            ("fallback_random", str(self.fallback_random)),
        )
