"""`kernelfarm explain-miss`: says why the farm does not find a program, trace or package."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.cli._cache import Endpoint, connect
from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    from kernelfarm.client.diagnostics.local_traces import LocalTrace
    from kernelfarm.client.farm.client import FarmClient
    from kernelfarm.client.settings import ClientSettings
    from kernelfarm.v1.cache_service_pb2 import ExplainMissResponse

_KEY_HEX_CHARS = 64
_MAX_TRACES = 32
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm explain-miss model.pt2 --target cuda:sm_90a

  kernelfarm explain-miss 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

  kernelfarm explain-miss --traces

  kernelfarm explain-miss --packages
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="explain-miss", epilog=_EPILOG)(explain_miss)


def explain_miss(
    source: Annotated[
        str,
        typer.Argument(
            help="A .pt2 file, or a program key (64 hex); with --traces or --packages, a digest."
        ),
    ] = "",
    target: Annotated[str, typer.Option(help="The target of the .pt2 file.")] = "cpu:x86-64-v3",
    model: Annotated[
        str, typer.Option(help="The model's ID@REVISION, as set by KERNELFARM_MODEL.")
    ] = "",
    traces: Annotated[
        bool, typer.Option("--traces", help="Explain the traces that this machine made.")
    ] = False,
    packages: Annotated[
        bool, typer.Option("--packages", help="Explain calls here that found no package.")
    ] = False,
    endpoint: Endpoint = None,
) -> None:
    """Shows the differences between the missing entry and the nearest existing one."""
    is_key = len(source) == _KEY_HEX_CHARS and set(source.lower()) <= set("0123456789abcdef")
    if traces or packages:
        if source and not is_key:
            raise CallerError(f"{source!r} is not a digest of {_KEY_HEX_CHARS} hex digits")
        _explain_shared(source.lower(), model, endpoint, of_packages=packages)
        return
    path = Path(source)
    if not is_key and not path.is_file():
        raise CallerError(f"{source!r} is not a file or a key of {_KEY_HEX_CHARS} hex digits")
    with connect(endpoint) as farm:
        if is_key:
            explanation = farm.explain_key(bytes.fromhex(source))
        else:
            from kernelfarm.client.capture.exported import read_pt2  # noqa: PLC0415 (loads torch)

            explanation = farm.explain_graph(read_pt2(path).captured.graph, target, model=model)
    _print_explanation("program", explanation)


def _explain_shared(digest: str, model: str, endpoint: str | None, *, of_packages: bool) -> None:
    from kernelfarm.cli._missing_packages import explain_packages  # noqa: PLC0415
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415 (keeps --help quick)

    stated = {"endpoint": endpoint, "model": model or None}
    settings = client_settings(**{name: value for name, value in stated.items() if value})
    if of_packages:
        explain_packages(settings, digest, _print_explanation)
    else:
        _explain_traces(settings, digest)


def _explain_traces(settings: ClientSettings, digest: str) -> None:
    from kernelfarm.client.diagnostics.local_traces import LocalTrace, local_traces  # noqa: PLC0415
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.farm.manifest_verifier import describe_traces  # noqa: PLC0415

    root = settings.disk_cache_dir.expanduser()
    here = local_traces(root)
    if digest:
        digest_bytes = bytes.fromhex(digest)
        here = [t for t in here if t.digest == digest_bytes] or [LocalTrace(digest_bytes, {}, 0.0)]
    state, is_asked = describe_traces(settings)
    if not is_asked:
        typer.echo(f"this machine does not use shared traces: {state}")
    if not here:
        typer.echo(f"no traces on this machine (in {root})")
    with FarmClient(settings) as client:
        for trace in here[:_MAX_TRACES]:
            _explain_trace(client, settings, trace)
    if len(here) > _MAX_TRACES:
        typer.echo(f"{len(here) - _MAX_TRACES} older traces are not shown; name one by its digest")


def _explain_trace(client: FarmClient, settings: ClientSettings, trace: LocalTrace) -> None:
    from kernelfarm.client.diagnostics.local_traces import explained, why_not_trusted  # noqa: PLC0415

    explanation = explained(client, trace.digest, trace.parts)
    _print_explanation("trace", explanation.trace)
    if explanation.HasField("manifest"):
        refusal = why_not_trusted(client, settings, explanation)
        typer.echo(
            f"  this client does not trust it: {refusal}" if refusal else "  this client trusts it"
        )
        _print_explanation("  its program", explanation.program)
    if trace.used_s:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(trace.used_s))
        typer.echo(f"  traced on this machine; last used {used}")


def _print_explanation(what: str, explanation: ExplainMissResponse) -> None:
    from kernelfarm.v1.cache_service_pb2 import MissReason  # noqa: PLC0415 (keeps --help quick)

    reason = MissReason.Name(explanation.reason).removeprefix("MISS_REASON_").lower()
    if reason == "none":
        typer.echo(f"{what} {explanation.key.hex()} is found")
        return
    typer.echo(f"{what} {explanation.key.hex()} is not found: {reason}")
    if explanation.nearest_key and explanation.nearest_key != explanation.key:
        typer.echo(f"nearest: {explanation.nearest_key.hex()}")
    for difference in explanation.differences:
        typer.echo(
            f"  {difference.part}: requested {difference.requested}; nearest {difference.nearest}"
        )
    if not explanation.differences:
        typer.echo("  no similar entry exists")
