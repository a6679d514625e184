"""How strongly compilations are confined here: the mechanisms that this host offers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kernelfarm.errors import UnavailableError

STRONGEST = "strongest"
_REQUIRED = "required:"


class Mechanism(enum.Enum):
    """One means of confinement, by the word that settings and reports use."""

    NAMESPACES = "namespaces"
    """Own user, network, IPC, mount and process namespaces: no network, nobody else's processes."""
    LANDLOCK = "landlock"
    """No files but the toolchain's, read-only, and a folder of its own."""
    SECCOMP = "seccomp"
    """No system calls that compiling does not need."""
    LIMITS = "limits"
    """Bounds of memory, processor time, files and processes: offered by every Linux."""


@dataclass(frozen=True, slots=True)
class ConfinementLevel:
    """The mechanisms that are in force, strongest first."""

    mechanisms: frozenset[Mechanism]

    def __str__(self) -> str:
        return "+".join(m.value for m in Mechanism if m in self.mechanisms) or "none"


def parse_level(text: str) -> ConfinementLevel:
    """The level of a report such as `landlock+limits`; unknown words count for nothing."""
    words = set(text.split("+"))
    return ConfinementLevel(frozenset(m for m in Mechanism if m.value in words))


def required_mechanisms(setting: str) -> frozenset[Mechanism]:
    """What a setting demands: nothing for `strongest`, else what `required:a+b` names.

    Raises:
        ValueError: the setting is of another form, or names what does not exist.
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
    """Passes a level that offers what a setting demands.

    Raises:
        UnavailableError: it does not.
    """
    missing = [
        m.value
        for m in Mechanism
        if m in required_mechanisms(setting) and m not in level.mechanisms
    ]
    if missing:
        raise UnavailableError(
            f"compilations can be confined by {level} here, and KERNELFARM_SANDBOX={setting}"
            f" demands {', '.join(missing)} too: allow it on this host, or demand less"
        )
