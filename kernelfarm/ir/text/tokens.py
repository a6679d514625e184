"""Tokens of one line of text, and a cursor over them."""

from __future__ import annotations

import json
import re

from kernelfarm.errors import MalformedMessageError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<float>\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)
    | (?P<int>\d+)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
    | (?P<sign>//|->|\.\.|[-+*%()\[\]{},:;=@])
    )""",
    re.VERBOSE,
)

Token = tuple[str, str]
"""Kind (`string`, `float`, `int`, `word`, `sign`) and text."""

_END: Token = ("end", "")


class Cursor:
    """The tokens of one line, read from left to right.

    Example:
        >>> cursor = Cursor("add(%1)", line=3)
        >>> cursor.word()
        'add'
        >>> cursor.accept("(")
        True
    """

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.line = line
        self._tokens = self._tokenized(text)
        self._position = 0

    def _tokenized(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise MalformedMessageError(
                    f"line {self.line}: {text[position : position + 20]!r} is no token"
                )
            tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        return tokens

    @property
    def next(self) -> Token:
        """The next token, without consuming it; of kind `end` after the last."""
        return self._tokens[self._position] if self._position < len(self._tokens) else _END

    def take(self) -> Token:
        """The next token, which is consumed."""
        token = self.next
        self._position += 1
        return token

    def accept(self, text: str) -> bool:
        """Consumes the next token if it is this sign or word; says whether it was."""
        kind, seen = self.next
        if seen != text or kind == "string":
            return False
        self._position += 1
        return True

    def expect(self, text: str) -> None:
        """Consumes this sign or word.

        Raises:
            MalformedMessageError: the next token is a different one.
        """
        if not self.accept(text):
            raise self.error(f"expected {text!r}")

    def word(self) -> str:
        """Consumes a word."""
        return self._of_kind("word", "a name")

    def string(self) -> str:
        """Consumes a string; gives its content."""
        text: str = json.loads(self._of_kind("string", "a string"))
        return text

    def integer(self) -> int:
        """Consumes an integer with an optional sign."""
        sign = -1 if self.accept("-") else 1
        return sign * int(self._of_kind("int", "an integer"))

    def value(self) -> int:
        """Consumes a value such as `%5`; gives its id."""
        self.expect("%")
        return int(self._of_kind("int", "a value's number"))

    def end(self) -> None:
        """Checks that the line ends here."""
        if self.next[0] != "end":
            raise self.error("expected the end of the line")

    def error(self, expected: str) -> MalformedMessageError:
        """An error that shows the next token."""
        seen = self.next[1] or "the end"
        return MalformedMessageError(f"line {self.line}: {seen!r}; {expected}, in {self.text!r}")

    def _of_kind(self, kind: str, expected: str) -> str:
        if self.next[0] != kind:
            raise self.error(f"expected {expected}")
        return self.take()[1]


def quoted(text: str) -> str:
    """Text as a string token."""
    return json.dumps(text, ensure_ascii=False)


def is_word(text: str) -> bool:
    """True if the text is one word token."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "word" and match.group("word") == text
