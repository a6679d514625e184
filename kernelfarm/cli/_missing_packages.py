"""Shows why calls on this machine found no package, for `kernelfarm explain-miss --packages`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from kernelfarm.errors import CallerError, KernelfarmError

if TYPE_CHECKING:
    from kernelfarm.client.farm.client import FarmClient
    from kernelfarm.client.packages.questions import Unanswered
    from kernelfarm.client.settings import ClientSettings
    from kernelfarm.v1.cache_service_pb2 import ExplainMissResponse

_MAX_QUESTIONS = 16

PrintExplanation = Callable[[str, "ExplainMissResponse"], None]


def explain_packages(settings: ClientSettings, digest: str, show: PrintExplanation) -> None:
    """Prints, for each call without a package, what differs from the nearest one at the farm.

    Raises:
        CallerError: no call with this digest was recorded on this machine.
        KernelfarmError: the farm does not answer.
    """
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.packages.questions import Questions  # noqa: PLC0415

    root = settings.disk_cache_dir.expanduser()
    asked = Questions(root).all()
    if digest:
        asked = [question for question in asked if question.digest.hex() == digest]
        if not asked:
            raise CallerError(f"no call without a package has digest {digest} (in {root})")
    if settings.packages == "off":
        typer.echo("this machine uses no packages: set KERNELFARM_PACKAGES=trusted")
    if not asked:
        typer.echo(f"no call without a package on this machine (in {root})")
    with FarmClient(settings) as client:
        for question in asked[:_MAX_QUESTIONS]:
            _explain(client, settings, question, show)
    if len(asked) > _MAX_QUESTIONS:
        typer.echo(
            f"{len(asked) - _MAX_QUESTIONS} older calls are not shown; name one by its digest"
        )


def _explain(
    client: FarmClient, settings: ClientSettings, question: Unanswered, show: PrintExplanation
) -> None:
    from kernelfarm.client.diagnostics.local_traces import explained, why_not_trusted  # noqa: PLC0415
    from kernelfarm.client.diagnostics.missing_packages import title_of  # noqa: PLC0415

    explanation = explained(client, question.digest, question.parts)
    show("package", explanation.trace)
    typer.echo(f"  of {title_of(question.parts)}")
    if question.refusal:
        typer.echo(f"  refused here: {question.refusal}")
    if explanation.HasField("manifest"):
        refusal = why_not_trusted(client, settings, explanation)
        typer.echo(
            f"  this client does not trust it: {refusal}" if refusal else "  this client trusts it"
        )
    elif explanation.trace.nearest_key:
        _show_facts(client, settings, question, explanation.trace.nearest_key)
    asked = time.strftime("%Y-%m-%d %H:%M", time.localtime(question.asked_s))
    typer.echo(f"  last asked for on {asked}")


def _show_facts(
    client: FarmClient, settings: ClientSettings, question: Unanswered, nearest: bytes
) -> None:
    from kernelfarm.client.diagnostics.missing_packages import (  # noqa: PLC0415
        MAX_DIFFERENCES,
        fact_differences,
        header_at_farm,
    )

    try:
        header = header_at_farm(client, settings, nearest)
    except KernelfarmError as error:
        typer.echo(f"  the nearest one cannot be compared: {error}")
        return
    differences = fact_differences(question, header)
    for found in differences[:MAX_DIFFERENCES]:
        here, package = found.here or "absent", found.package or "absent"
        typer.echo(f"  {found.name}: here {here}; package {package}")
    if len(differences) > MAX_DIFFERENCES:
        typer.echo(f"  {len(differences) - MAX_DIFFERENCES} more differences")
