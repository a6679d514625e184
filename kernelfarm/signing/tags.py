"""Tags: the names of what entries depend on, by which they are invalidated.

tag  = KIND ":" NAME          NAME: printable ASCII without spaces, 200 characters at most
KIND = toolchain   BACKEND@FINGERPRINT of each worker, optimizer and frontend that took part
     | pass        a pass of a pipeline, by its name
     | op          a captured operator (`aten.gelu.default`)
     | driver      the vendor whose driver runs the result
     | model       ID@REVISION as the client names it
     | tenant      the tenant that asked for it
     | limit       the vendor whose workers could not compile a kernel within their limits
     | artifact    SHA-256 of a loadable binary, hex
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelfarm.errors import CallerError

KINDS = ("toolchain", "pass", "op", "driver", "model", "tenant", "limit", "artifact")
MAX_NAME_CHARS = 200

_TAG = re.compile(rf"({'|'.join(KINDS)}):[!-~]{{1,{MAX_NAME_CHARS}}}")
_NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_CHARS}}}")


def check_tag(tag: str) -> None:
    """Checks that a tag follows the grammar.

    Raises:
        CallerError: it does not; the message says what is expected.
    """
    if not _TAG.fullmatch(tag):
        raise CallerError(
            f"tag {tag[:80]!r}; expected KIND:NAME without spaces, KIND one of {', '.join(KINDS)}"
        )


def model_tag(model: str) -> str:
    """The tag of a model.

    Raises:
        CallerError: the name has spaces, is too long, or is not ASCII.
    """
    if not _NAME.fullmatch(model):
        raise CallerError(
            f"model {model[:80]!r}; expected id@revision in ASCII without spaces, at most"
            f" {MAX_NAME_CHARS} characters"
        )
    return f"model:{model}"


def op_tag(op: str) -> str:
    """The tag of a captured operator."""
    return f"op:{op}"


def pass_tag(name: str) -> str:
    """The tag of a pass."""
    return f"pass:{name}"


def toolchain_tag(toolchain: str) -> str:
    """The tag of a toolchain, `backend@fingerprint`."""
    return f"toolchain:{toolchain}"


def driver_tag(vendor: str) -> str:
    """The tag of a vendor's driver."""
    return f"driver:{vendor}"


def tenant_tag(tenant: str) -> str:
    """The tag of a tenant."""
    return f"tenant:{tenant}"


def limit_tag(vendor: str) -> str:
    """The tag of the limits of a vendor's workers."""
    return f"limit:{vendor}"


def lacks_a_kernel(tags: Sequence[str]) -> bool:
    """Whether an entry lacks a kernel that a later compilation may give it.

    Such an entry is not renewed. So it expires, and its kernels are compiled again.
    """
    return any(tag.startswith("limit:") for tag in tags)


def artifact_tag(sha256: bytes) -> str:
    """The tag of a loadable binary."""
    return f"artifact:{sha256.hex()}"
