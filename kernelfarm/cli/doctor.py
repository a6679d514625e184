"""`kernelfarm doctor`: checks the installation, and says how to get what is missing."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.errors import CallerError, KernelfarmError

if TYPE_CHECKING:
    from codegen_svc.backends.contract import Backend

_EXIT_MISSING = 1
_REGISTRY = "codegen_svc.backends.registry"
_DISK_REMEDY = (
    "set KERNELFARM_DISK_CACHE_BYTES above 0, so that new processes can start without the farm"
)
_KEYS_REMEDY = "set KERNELFARM_TRUSTED_KEYS_FILE to the farm's public.json"
_TRACES_REMEDY = (
    "add the farm's public key for traces (`kernelfarm keys`) to KERNELFARM_TRUSTED_KEYS_FILE"
)
_PACKAGES_REMEDY = "pin the public keys of publishers in KERNELFARM_TRUSTED_KEYS_FILE"
_EPILOG = """
[bold]Examples[/bold]

  kernelfarm doctor

  kernelfarm doctor --endpoint farm.example:50051
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `state` is what was found; `remedy` says what to do if it failed."""

    area: str
    name: str
    is_fine: bool
    is_required: bool
    state: str
    remedy: str = ""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=_EPILOG)(doctor)


def doctor(
    endpoint: Annotated[
        str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
    ] = None,
) -> None:
    """Checks the client, the farm and every vendor's toolchain; exit code 1 if one cannot work.

    A farm that does not answer and missing optional tools do not change the exit code.
    """
    from rich.console import Console  # noqa: PLC0415 (keeps --help quick)
    from rich.table import Table  # noqa: PLC0415

    findings = [*_client(), *_tiers(endpoint), _farm(endpoint), *_toolchains(), *_sandbox()]
    table = Table(show_edge=False, box=None, pad_edge=False)
    for name in ("area", "what", "", "found"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.area, finding.name, _mark(finding), finding.state)
    console = Console()
    console.print(table)
    for finding in findings:
        if not finding.is_fine and finding.remedy:
            console.print(f"{finding.name}: {finding.remedy}", markup=False, soft_wrap=True)
    if any(finding.is_required and not finding.is_fine for finding in findings):
        raise typer.Exit(_EXIT_MISSING)


def _mark(finding: Finding) -> str:
    if finding.is_fine:
        return "[green]ok[/green]"
    return "[red]missing[/red]" if finding.is_required else "[yellow]absent[/yellow]"


def _client() -> list[Finding]:
    found = [Finding("client", "python", True, True, platform.python_version())]
    for package in ("torch", "grpcio", "protobuf"):
        found.append(_package("client", package))
    if find_spec("torch") is None:
        return found
    host = import_module("kernelfarm.client.loaders.host_target")
    loaders = import_module("kernelfarm.client.loaders.by_device")
    try:
        target, is_fine, remedy = loaders.host_support().target, True, ""
        best = host.this_processor().target()
        if target != best:
            target += f" (KERNELFARM_HOST_TARGET; the best here is {best})"
    except KernelfarmError as error:
        target, is_fine, remedy = "none", False, str(error)
    found.append(Finding("client", "CPU target", is_fine, False, target, remedy))
    torch = import_module("torch")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(gpus))
    found.append(Finding("client", "GPUs", gpus > 0, False, names or "none seen by torch"))
    if is_fine:
        found.append(Finding("client", "tuned as", True, False, _tuned_as(gpus)))
    return found


def _tuned_as(gpus: int) -> str:
    """The names of this machine's devices among the fleet's reports, as manifests state them."""
    torch = import_module("torch")
    by_device = import_module("kernelfarm.client.loaders.by_device").device_support
    timer = import_module("kernelfarm.client.loaders.cpu_timer").CpuTimer()
    names = [timer.device()]
    for number in range(gpus):
        try:
            names.append(by_device(torch.device(number)).loader.timer().device())
        except KernelfarmError as error:
            names.append(str(error))
    return "\n".join(dict.fromkeys(names))


def _package(area: str, name: str) -> Finding:
    try:
        return Finding(area, name, True, True, version(name))
    except PackageNotFoundError:
        return Finding(area, name, False, True, "not installed", f"pip install {name}")


def _tiers(endpoint: str | None) -> list[Finding]:
    """The client's mode, disk tier and trusted keys."""
    from kernelfarm.client.diagnostics.disk import usage  # noqa: PLC0415 (loads grpc)
    from kernelfarm.client.disk.folder import checked_tier_folder  # noqa: PLC0415
    from kernelfarm.client.farm.manifest_verifier import (  # noqa: PLC0415
        describe_packages,
        describe_traces,
        describe_trust,
    )
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415

    settings = client_settings(**({"endpoint": endpoint} if endpoint else {}))
    found = [Finding("client", "mode", True, True, settings.mode)]
    try:
        root = checked_tier_folder(settings)
    except CallerError as error:
        found.append(Finding("client", "disk tier", False, False, "refused", str(error)))
        root = None
    if root is not None:
        held = usage(root)
        state = f"{root}: {held.entries} programs, {held.size_bytes >> 20} MiB"
        state += f" of {settings.disk_cache_bytes >> 20}"
        found.append(Finding("client", "disk tier", True, False, state))
    elif not settings.disk_cache_bytes:
        found.append(Finding("client", "disk tier", False, False, "off", _DISK_REMEDY))
    state, is_fine = describe_trust(settings)
    found.append(Finding("client", "keys", is_fine, False, state, "" if is_fine else _KEYS_REMEDY))
    state, is_fine = describe_traces(settings)
    remedy = "" if is_fine else _TRACES_REMEDY
    found.append(Finding("client", "traces", is_fine, False, state, remedy))
    state, is_fine = describe_packages(settings)
    remedy = "" if is_fine else _PACKAGES_REMEDY
    found.append(Finding("client", "packages", is_fine, False, state, remedy))
    return found


def _farm(endpoint: str | None) -> Finding:
    from kernelfarm.client.farm.client import FarmClient  # noqa: PLC0415 (loads grpc)
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415

    stated = {"endpoint": endpoint} if endpoint else {}
    settings = client_settings(**stated, timeout_s=5.0)
    start = "start one with `kernelfarm up`, or set KERNELFARM_ENDPOINT"
    with FarmClient(settings) as client:
        try:
            found = client.capabilities()
        except KernelfarmError as error:
            return Finding("farm", settings.endpoint, False, False, str(error), start)
    vendors = sorted({target.target.partition(":")[0] for target in found.targets})
    state = f"version {found.farm_version}, {len(found.targets)} targets: {', '.join(vendors)}"
    return Finding("farm", settings.endpoint, True, False, state)


def _toolchains() -> list[Finding]:
    # The services are an optional part of the installation.
    if find_spec("codegen_svc") is None:
        return []
    registry = import_module(_REGISTRY)
    found: list[Finding] = []
    for vendor in registry.vendors():
        try:
            backend: Backend = registry.find_backend(vendor)
        except KernelfarmError as error:
            remedy = "pip install 'kernelfarm[farm]'"
            found.append(Finding(vendor, "backend", False, True, str(error), remedy))
            continue
        found.extend(
            Finding(vendor, t.name, t.is_found, t.is_required, t.version, t.remedy)
            for t in backend.tools()
        )
    return found


def _sandbox() -> list[Finding]:
    """The confinement level that workers on this host reach."""
    if find_spec("codegen_svc") is None:
        return []
    level_module = import_module("codegen_svc.sandbox.level")
    try:
        level = import_module("codegen_svc.sandbox.probe").probed_level()
    except KernelfarmError as error:
        return [Finding("farm", "sandbox", False, True, str(error))]
    missing = [m.value for m in level_module.Mechanism if m not in level.mechanisms]
    remedy = f"this host or container does not offer {', '.join(missing)}: see docs/security.md"
    return [Finding("farm", "sandbox", not missing, False, str(level), remedy if missing else "")]
