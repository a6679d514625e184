"""Structured logs and their limits."""

from kernelfarm.hidden_modules import hidden

# structlog draws traces of exceptions with rich, whose import takes 70 ms; services write JSON.
with hidden("rich"):
    import structlog  # noqa: F401
