"""Network namespaces on one bridge, which can be disconnected; needs root on Linux.

Every part has a namespace with one interface. The bridge is in a namespace of its own: it has no
connection to the machine's own network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass


def can_partition() -> bool:
    """True if this process may create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    return made.returncode == 0


@dataclass(frozen=True)
class Switch:
    """A bridge that connects parts by name; `address` is the address of a part."""

    name: str
    parts: tuple[str, ...]

    def __enter__(self) -> Switch:
        _ip("netns", "add", self.name)
        self._inside(self.name, "link", "add", "bridge", "type", "bridge")
        self._inside(self.name, "link", "set", "bridge", "up")
        for part in self.parts:
            self._add_part(part)
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*(self.namespace(part) for part in self.parts), self.name):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def namespace(self, part: str) -> str:
        """The namespace of a part."""
        return f"{self.name}-{part}"

    def address(self, part: str) -> str:
        """The address of a part, which only the other parts can reach."""
        return f"10.213.0.{self.parts.index(part) + 1}"

    def prefix(self, part: str) -> tuple[str, ...]:
        """The prefix of a command that runs in the namespace of a part."""
        return ("ip", "netns", "exec", self.namespace(part))

    def cut(self, part: str) -> None:
        """Disconnects a part: all packets from and to it are lost."""
        self._inside(self.name, "link", "set", part, "down")

    def connect(self, part: str) -> None:
        """Connects a part again."""
        self._inside(self.name, "link", "set", part, "up")

    def _add_part(self, part: str) -> None:
        namespace = self.namespace(part)
        _ip("netns", "add", namespace)
        self._inside(
            *(self.name, "link", "add", part, "type", "veth"),
            *("peer", "name", "cable", "netns", namespace),
        )
        self._inside(self.name, "link", "set", part, "master", "bridge")
        self._inside(self.name, "link", "set", part, "up")
        self._inside(namespace, "addr", "add", f"{self.address(part)}/24", "dev", "cable")
        for device in ("lo", "cable"):
            self._inside(namespace, "link", "set", device, "up")

    @staticmethod
    def _inside(namespace: str, *arguments: str) -> None:
        _ip("-n", namespace, *arguments)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
