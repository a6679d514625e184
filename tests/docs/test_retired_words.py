"""Words of a former vocabulary occur nowhere: the rules in `retired_words.tsv` find nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from tests.support.source_code import ROOT

RULES_FILE = Path(__file__).with_name("retired_words.tsv")
MARK = "retired-word: ok"
MOST_SHOWN = 20

UNSEARCHED = re.compile(
    r"""
    ^(docs/adr/|CHANGELOG|LICENSE|NOTICE)  # they say what was decided or published at a time
    | ^docs/operator_database\.md$         # PyTorch's names
    | ^tests/docs/(test_)?retired_words\.
    | ^tests/fuzz/corpus/
    | _pb2                                 # generated code
    | \.(json|gz|pb|png)$
    """,
    re.VERBOSE,
)

_IGNORES_CASE = "(?i)"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the rules file, by its number in the file."""

    number: int
    pattern: str
    where: str
    unless: str
    instead: str

    def finds(self, path: str, line: str) -> bool:
        """True if a line of a file has the retired word."""
        if not re.search(self.where, path) or (self.unless and re.search(self.unless, path)):
            return False
        form = _as_words(line) if self.pattern.startswith(_IGNORES_CASE) else line
        return re.search(self.pattern, form) is not None


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """The rules of the file, in order."""
    lines = enumerate(RULES_FILE.read_text(encoding="utf-8").splitlines(), 1)
    cells = [(number, line.split("\t")) for number, line in lines if line and line[0] != "#"]
    return tuple(
        Rule(number, *("" if cell == "-" else cell for cell in row)) for number, row in cells
    )


@lru_cache(maxsize=1)
def hits() -> dict[Rule, list[str]]:
    """What each rule finds, as `PATH:LINE: text`; lines with the mark are left out."""
    found: dict[Rule, list[str]] = {rule: [] for rule in rules()}
    for path, number, line in _suspect_lines():
        for rule in rules():
            if rule.finds(path, line) and MARK not in line:
                found[rule].append(f"{path}:{number}: {line.strip()}")
    return found


def _suspect_lines() -> Iterator[tuple[str, int, str]]:
    """Lines in which some rule finds something, wherever it is to be searched.

    One pattern of all rules is ten times as fast as one after the other.
    """
    patterns = [rule.pattern for rule in rules()]
    ignoring = [p.removeprefix(_IGNORES_CASE) for p in patterns if p.startswith(_IGNORES_CASE)]
    lowered = _any_of(ignoring)
    exact = _any_of([p for p in patterns if not p.startswith(_IGNORES_CASE)])
    for path in _paths():
        text = (ROOT / path).read_text(encoding="utf-8")
        if lowered.search(_as_words(text)) or exact.search(text):
            for number, line in enumerate(text.splitlines(), 1):
                if lowered.search(_as_words(line)) or exact.search(line):
                    yield path, number, line


def _as_words(text: str) -> str:
    """The text in lower case, with identifiers as words."""
    return text.lower().replace("_", " ")


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    # Each rule begins with a word: to say so once spares most positions.
    return re.compile(rf"\b(?=\w)(?:{'|'.join(f'(?:{pattern})' for pattern in patterns)})")


def _paths() -> Iterator[str]:
    """Text files that git has, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        if not UNSEARCHED.search(path) and (ROOT / path).is_file():
            yield path


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"line {rule.number}")
def test_a_retired_word_is_nowhere(rule: Rule) -> None:
    found = hits()[rule]
    shown = "\n".join(found[:MOST_SHOWN])
    assert not found, f"{len(found)} uses; say instead: {rule.instead}\n{shown}"


def test_each_mark_gives_a_reason_and_is_needed() -> None:
    for path, number, line in _marked_lines():
        reason = line.partition(MARK)[2].strip(" ,:;()-*/\"'`")
        assert reason, f"{path}:{number}: say why the word is right there"
        assert any(rule.finds(path, line.replace(MARK, "")) for rule in rules()), (
            f"{path}:{number}: no rule finds a retired word there; remove the mark"
        )


def _marked_lines() -> Iterator[tuple[str, int, str]]:
    for path in _paths():
        text = (ROOT / path).read_text(encoding="utf-8")
        if MARK in text:
            for number, line in enumerate(text.splitlines(), 1):
                if MARK in line:
                    yield path, number, line


def test_rules_ignore_case_by_patterns_in_lower_case() -> None:
    for rule in rules():
        pattern = rule.pattern.removeprefix(_IGNORES_CASE)
        if pattern != rule.pattern:
            assert pattern == pattern.lower(), rule.number
