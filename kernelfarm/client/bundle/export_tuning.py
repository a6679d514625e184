"""Reads the fleet's choices for a program from a farm, as a bundle has them.

A choice is of use only with the program that it names. So records go into a bundle if the farm
still chooses as the certificate states, and has the chosen program; else they are left out.
"""

from __future__ import annotations

from kernelfarm.client.farm.checked_tuning import SignedTuning
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.tuning_client import FarmTuning
from kernelfarm.client.warming.certificate import SubjectCoverage, TuningCoverage
from kernelfarm.client.warming.retry import Retry
from kernelfarm.errors import CallerError
from kernelfarm.tuning import TuningSubject


class TuningExport:
    """The records of a farm, each read once: layers and models share subjects."""

    def __init__(self, client: FarmClient, retry: Retry) -> None:
        self._fleet, self._retry = FarmTuning(client), retry
        self._read: dict[TuningSubject, SignedTuning | None] = {}

    def records(self, stated: TuningCoverage) -> tuple[bytes, ...]:
        """The signed records, serialized, of the subjects that a certificate states for a device.

        Raises:
            CallerError: the certificate states none, or the farm chooses otherwise by now.
            IntegrityError: no trusted key signed a record.
            KernelfarmError: the farm does not answer, or is older than tuning records.
        """
        if stated.state != "present":
            raise CallerError(f"the certificate states: {stated.reason}")
        return tuple(self._record(subject, stated.device) for subject in stated.subjects)

    def _record(self, stated: SubjectCoverage, device: str) -> bytes:
        subject = TuningSubject(bytes.fromhex(stated.digest), device, stated.candidates)
        if subject not in self._read:
            self._read[subject] = self._retry(lambda: self._fleet.record(subject))
        found = self._read[subject]
        now = None if found is None else found.record.state.winner
        if found is None or now != stated.winner:
            raise CallerError(
                f"{stated.name}: the fleet now chooses candidate {now}; the certificate states"
                f" {stated.winner}: run `kernelfarm warm` again, which compiles what is chosen now"
            )
        return found.to_proto().SerializeToString(deterministic=True)
