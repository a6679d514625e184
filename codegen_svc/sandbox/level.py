"""Confinement levels: the mechanisms that confine compilations on a host."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kernelfarm.errors import UnavailableError

STRONGEST = "strongest"
_REQUIRED = "required:"


class Mechanism(enum.Enum):
    """A mechanism of confinement, by the word that settings and reports use."""

    NAMESPACES = "namespaces"
    """Own user, network, IPC, mount and process namespaces: no network, no other processes."""
    LANDLOCK = "landlock"
    """Files: only the toolchain's, read-only, and a folder of its own."""
    SECCOMP = "seccomp"
    """System calls: only those that compiling needs."""
    LIMITS = "limits"
    """Limits of memory, processor time, files and processes; every Linux has them."""


@dataclass(frozen=True, slots=True)
class ConfinementLevel:
    """The mechanisms that are in force, strongest first."""

    mechanisms: frozenset[Mechanism]

    def __str__(self) -> str:
        return "+".join(m.value for m in Mechanism if m in self.mechanisms) or "none"


def parse_level(text: str) -> ConfinementLevel:
    """The level of a report such as `landlock+limits`; unknown words are ignored."""
    words = set(text.split("+"))
    return ConfinementLevel(frozenset(m for m in Mechanism if m.value in words))


def required_mechanisms(setting: str) -> frozenset[Mechanism]:
    """The mechanisms that a setting demands: none for `strongest`, a and b for `required:a+b`.

    Raises:
        ValueError: the setting has another form, or names an unknown mechanism.
    """
    if setting == STRONGEST:
        return frozenset()
    known = {m.value: m for m in Mechanism}
    words = setting.removeprefix(_REQUIRED).split("+")
    unknown = [word for word in words if word not in known]
    if not setting.startswith(_REQUIRED) or unknown:
        raise ValueError(
            f"{setting!r}; expected {STRONGEST!r}, or {_REQUIRED!r} and some of"
            f" {', '.join(known)} joined by +"
        )
    return frozenset(known[word] for word in words)


def check_level(level: ConfinementLevel, setting: str) -> None:
    """Checks that a level has the mechanisms that a setting demands.

    Raises:
        UnavailableError: one of them is missing.
    """
    missing = [
        m.value
        for m in Mechanism
        if m in required_mechanisms(setting) and m not in level.mechanisms
    ]
    if missing:
        raise UnavailableError(
            f"this host can confine compilations by {level}, but KERNELFARM_SANDBOX={setting}"
            f" demands {', '.join(missing)} too: allow it on this host, or demand less"
        )
