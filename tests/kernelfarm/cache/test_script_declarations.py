"""Python and Lua agree on each script's keys and arguments."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

import pytest

from kernelfarm.cache.lua_script import Script, lua_text
from kernelfarm.cache.redis_keys import RedisKey
from kernelfarm.cache.script_declarations import SCRIPTS
from kernelfarm.cache.variant_records import VariantRecord

LIBRARIES = {library for script in SCRIPTS.values() for library in script.libraries}
FILES = {path.name for path in (resources.files("kernelfarm.cache") / "lua").iterdir()}

_UNPACKED = re.compile(r"local ([\w\s,]+?)\s*=\s*unpack\((KEYS|ARGV)\b[^)]*\)")
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)


def code_of(name: str) -> str:
    """A Lua file without its comments."""
    return re.sub(r"--.*", "", lua_text(name))


def unpacked(name: str, table: str) -> list[tuple[str, ...]]:
    """The names of each statement that unpacks KEYS or ARGV."""
    found = _UNPACKED.findall(code_of(name))
    return [tuple(re.findall(r"\w+", names)) for names, source in found if source == table]


def functions_of(library: str) -> set[str]:
    return set(_FUNCTION.findall(code_of(library)))


def uses_one_of(name: str, functions: set[str]) -> bool:
    return bool(functions.intersection(re.findall(r"(\w+)\(", code_of(name))))


def test_each_lua_file_is_a_declared_script_or_a_library_of_one() -> None:
    assert {f"{name}.lua" for name in SCRIPTS.keys() | LIBRARIES} == FILES
    assert not SCRIPTS.keys() & LIBRARIES


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_names_its_keys_and_arguments_as_its_declaration_does(
    script: Script[tuple[object, ...]],
) -> None:
    keys, args = unpacked(script.name, "KEYS"), unpacked(script.name, "ARGV")
    if script.name == "count_dependents":  # it takes any number of entries
        keys = [()]
    if script.name == "publish":  # it also takes any number of variants
        assert args.pop() == VariantRecord._fields
        assert f"#ARGV, {len(VariantRecord._fields)} do" in code_of(script.name)
        assert f"for first = {len(script.arg_names) + 1}, #ARGV" in code_of(script.name)
        assert f"unpack(ARGV, 1, {len(script.arg_names)})" in code_of(script.name)
    assert (keys, args) == ([script.key_names], [script.arg_names])


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() | LIBRARIES))
def test_no_script_uses_a_key_or_argument_by_its_number(name: str) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\[", code_of(name))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_includes_the_libraries_that_it_uses_and_no_others(
    script: Script[tuple[object, ...]],
) -> None:
    for number, library in enumerate(script.libraries):
        later = (*script.libraries[number + 1 :], script.name)
        assert any(uses_one_of(name, functions_of(library)) for name in later), library
    for library in LIBRARIES.difference(script.libraries):
        assert not uses_one_of(script.name, functions_of(library)), library


def test_keys_come_before_arguments() -> None:
    class Reversed(NamedTuple):
        count: int
        entry: RedisKey

    with pytest.raises(TypeError, match="put keys first"):
        Script("lookup", Reversed)
