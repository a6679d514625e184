"""Lua scripts as values: their text, and calls whose keys and arguments have names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Generic, TypeVar, get_type_hints

from kernelfarm.cache.redis_keys import RedisKey

T = TypeVar("T")
ParametersT = TypeVar("ParametersT", bound=tuple[Any, ...])

Value = str | bytes | int | float
"""What a script may receive as an argument."""


class Script(Generic[ParametersT]):
    """A script of the folder `lua`, after the text of the libraries that it uses.

    `parameters` is a NamedTuple. Its first fields have the type `RedisKey` and are the script's
    KEYS; the other fields are its ARGV. A library comes after the libraries that it uses itself.
    """

    def __init__(
        self, name: str, parameters: type[ParametersT], libraries: tuple[str, ...] = ()
    ) -> None:
        hints = get_type_hints(parameters)
        self.name = name
        self.libraries = libraries
        self.key_names = tuple(field for field, hint in hints.items() if hint is RedisKey)
        self.arg_names = tuple(field for field, hint in hints.items() if hint is not RedisKey)
        self._key_count = len(self.key_names)
        if self.key_names + self.arg_names != tuple(hints):
            raise TypeError(f"{parameters.__name__} has a key after an argument; put keys first")

    @cached_property
    def source(self) -> str:
        """The Lua text that a server runs."""
        return "".join(lua_text(name) for name in (*self.libraries, self.name))

    @cached_property
    def sha1(self) -> str:
        """The digest by which a server identifies a script that it has loaded."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def call(
        self,
        parameters: ParametersT,
        read: Callable[[Any], T],
        *,
        more_keys: tuple[RedisKey, ...] = (),
        more_args: tuple[Value, ...] = (),
    ) -> ScriptCall[T]:
        """A call of the script whose reply `read` decodes."""
        keys, args = self.split(parameters)
        return ScriptCall(self, keys + more_keys, args + more_args, read)

    def split(self, parameters: ParametersT) -> tuple[tuple[RedisKey, ...], tuple[Value, ...]]:
        """The KEYS and ARGV of some parameters."""
        return parameters[: self._key_count], parameters[self._key_count :]


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """A script with its KEYS and ARGV, and the function that decodes its reply."""

    script: Script[Any]
    keys: tuple[RedisKey, ...]
    args: tuple[Value, ...]
    read: Callable[[Any], T]


def lua_text(name: str) -> str:
    """The text of a file of the folder `lua`."""
    path = resources.files("kernelfarm.cache") / "lua" / f"{name}.lua"
    return path.read_text(encoding="utf-8")
