"""The pages of a running farm: overview, log-in form, errors, and programs from its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import DecodeError

from kernelfarm.errors import MalformedMessageError
from kernelfarm.pages.program_facts import program_facts
from kernelfarm.pages.program_page import program_page
from kernelfarm.pages.program_view import program_view
from kernelfarm.pages.rendering import rendered
from kernelfarm.v1 import compile_service_pb2
from kernelfarm.wire.manifest import manifest_from_bytes

OWN_SITE = "'self'"
"""Where forms of these pages may be sent."""


def overview_page(overview: object, caller: str, can_log_out: bool) -> str:
    """The page of a farm; `caller` names its reader."""
    return rendered(
        "farm.html",
        form_action=OWN_SITE,
        overview=overview,
        caller=caller,
        can_log_out=can_log_out,
        time=_time_text,
    )


def login_page(message: str) -> str:
    """The form that asks for a token; `message` says why, or is empty."""
    return rendered("login.html", form_action=OWN_SITE, message=message)


def error_page(title: str, message: str) -> str:
    """A page that says what went wrong and what to do."""
    return rendered("error.html", heading=title, message=message)


def text_digests(content: bytes) -> list[bytes]:
    """The digests of all text stages that a program's content names, each once.

    Raises:
        MalformedMessageError: the content is not a program.
    """
    try:
        message = compile_service_pb2.ProgramResult.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are not a program") from error
    stages = [*message.stages, *(s for artifact in message.artifacts for s in artifact.stages)]
    return list(dict.fromkeys(stage.blob.sha256 for stage in stages if stage.is_text))


def cached_program_page(
    facts: Mapping[str, Any], content: bytes, manifest: bytes, texts: Sequence[bytes]
) -> bytes:
    """The page of a cached program: `facts` says where it was found, and the texts' digests.

    Raises:
        MalformedMessageError: content or manifest is malformed.
    """
    blobs = dict(zip(map(bytes.fromhex, facts["digests"]), map(bytes, texts), strict=True))
    checked = "valid: the farm checked it"
    program = program_facts(
        bytes(content), manifest_from_bytes(bytes(manifest)), facts["found"], checked
    )
    view = program_view(program, lambda digests: {sha256: blobs[sha256] for sha256 in digests})
    return program_page(program.key.hex()[:16], [view]).encode("utf-8")


def _time_text(seconds: float) -> str:
    """A time since 1970 in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
