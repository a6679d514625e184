"""Checks a farm against a certificate: look-ups by key, without graphs, so it needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.trace_client import TraceClient
from kernelfarm.client.warming.certificate import (
    Certificate,
    ProgramCoverage,
    TraceCoverage,
    TuningCoverage,
)
from kernelfarm.client.warming.found import checked_trace, kernels_of, toolchains_of
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import IntegrityError, MalformedMessageError, NotFoundError
from kernelfarm.ir.guards import NO_FACTS

_TRACE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """An entry of a certificate, and why the farm does not have it; empty if it has it.

    `notes` are differences that do no harm, such as a newer toolchain.
    """

    entry: ProgramCoverage
    missing: str
    notes: tuple[str, ...] = ()


def check_coverage(
    certificate: Certificate, client: FarmClient, retry: Retry, parallel: int
) -> Iterator[CheckedEntry]:
    """Whether the farm has each entry of a certificate, in its order.

    Entries that the certificate itself states as missing are missing. A program that an untrusted
    key signed counts as missing.

    Raises:
        KernelfarmError: the farm does not answer, or the caller may not read.
    """
    check = _Check(client, retry)
    with ThreadPoolExecutor(parallel, thread_name_prefix="coverage") as executor:
        yield from executor.map(check.entry, certificate.entries)


class _Check:
    def __init__(self, client: FarmClient, retry: Retry) -> None:
        self._client = client
        self._retry = retry

    def entry(self, entry: ProgramCoverage) -> CheckedEntry:
        """Whether the farm has one entry."""
        if not entry.is_present:
            return CheckedEntry(entry, f"the certificate states: {entry.reason}")
        client = self._client.for_model(entry.tag)
        try:
            program = self._retry(lambda: client.lookup(bytes.fromhex(entry.key)))
        except (NotFoundError, IntegrityError, MalformedMessageError) as error:
            return CheckedEntry(entry, f"program: {error}")
        if program.target != entry.target:
            return CheckedEntry(entry, f"the key is that of a program for {program.target}")
        missing = self._missing(client, "trace", entry.trace, entry.key)
        if not missing and entry.package is not None:
            missing = self._missing(client, "package", entry.package, entry.key)
        for chosen in entry.tuning or ():
            missing = missing or self._missing_choice(client, chosen)
        return CheckedEntry(entry, missing, tuple(_differences(entry, program)))

    def _missing(self, client: FarmClient, kind: str, stated: TraceCoverage, key: str) -> str:
        """Why the farm does not have a trace or package; empty if it has it."""
        if stated.state == "none":
            return ""
        digest = bytes.fromhex(stated.digest)
        answer = self._retry(
            lambda: TraceClient(client).lookup(
                digest, NO_FACTS, (), _TRACE_TIMEOUT_S, wants_program=False
            )
        )
        if answer.trace is None:
            return f"{kind} {digest.hex()[:16]}: the farm does not have it"
        try:
            found = checked_trace(client, answer.trace, digest)
        except (IntegrityError, MalformedMessageError) as error:
            return f"{kind} {digest.hex()[:16]}: {error}"
        return "" if found.hex() == key else f"the {kind} names another program"

    def _missing_choice(self, client: FarmClient, chosen: TuningCoverage) -> str:
        """Why the farm does not have the program that the fleet chose; empty if it has it."""
        if chosen.state == "none" or not chosen.key:
            return ""
        try:
            self._retry(lambda: client.lookup(bytes.fromhex(chosen.key)))
        except (NotFoundError, IntegrityError, MalformedMessageError) as error:
            return f"the program that the fleet chose for {chosen.device}: {error}"
        return ""


def _differences(entry: ProgramCoverage, program: CompiledProgram) -> Iterator[str]:
    if tuple(kernels_of(program)) != entry.kernels:
        yield "it has other kernels than at the certificate's time"
    for toolchain in toolchains_of(program):
        if toolchain not in entry.toolchains:
            yield f"toolchain {toolchain} is newer than the certificate"
