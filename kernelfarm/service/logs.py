"""Structured logs: one JSON object per line on stderr, fixed event names, bound request ids."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from kernelfarm.service.settings import ServiceSettings


def configure_logs(settings: ServiceSettings, room: str) -> None:
    """Sends this process's logs to stderr; every line carries the room's name."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(room=room)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(settings.log_format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get_logger() -> Any:
    """The logger of the calling process; call it as `log.info("event_name", field=value)`."""
    return structlog.get_logger()


def _renderers(log_format: str) -> list[Any]:
    if log_format == "console":
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
