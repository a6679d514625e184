"""Structured logs: one JSON object per line on stderr, fixed event names, bound request ids.

Warnings and errors of libraries that use `logging` (gRPC, asyncio, Celery) have the same form. The
length and rate of lines are limited (`logs/limits.py`).
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO, cast

import structlog

from kernelfarm.service.call_names import add_call_names
from kernelfarm.service.logs.limits import LibraryLimit, bound_fields, limit
from kernelfarm.service.logs.lossy_stream import LossyStream
from kernelfarm.service.settings import ServiceSettings


def configure_logs(settings: ServiceSettings, service: str) -> None:
    """Sends the logs of this process to stderr; every line has the name of the service."""

    def add_service(logger: Any, method: str, event: Any) -> Any:
        return {"service": service, **event}

    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_call_names,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
    ]
    structlog.configure(
        processors=[*shared, limit, *_renderers(settings.log_format)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    _configure_libraries([structlog.stdlib.add_logger_name, *shared], settings.log_format)


def get_logger() -> Any:
    """The logger of this process; use it as `get_logger().info("event_name", field=value)`."""
    return structlog.get_logger()


def _configure_libraries(shared: list[Any], log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(log_format),
            ],
        )
    )
    handler.addFilter(LibraryLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)


def _renderers(log_format: str) -> list[Any]:
    written: Any = structlog.processors.JSONRenderer()
    if log_format == "console":
        written = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return [structlog.processors.format_exc_info, bound_fields, written]
