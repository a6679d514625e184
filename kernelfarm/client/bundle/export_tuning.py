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


def signed_choices(stated: TuningCoverage, client: FarmClient, retry: Retry) -> tuple[bytes, ...]:
    """The signed records, serialized, of the subjects that a certificate states for one device.

    Raises:
        CallerError: the farm has no reports on a subject any more, or they choose otherwise.
        IntegrityError: no trusted key signed a record.
        KernelfarmError: the farm does not answer, or is older than tuning records.
    """
    fleet = FarmTuning(client)
    found = []
    for subject in stated.subjects:
        asked = TuningSubject(bytes.fromhex(subject.digest), stated.device, subject.candidates)
        record = retry(lambda asked=asked: fleet.record(asked))  # type: ignore[misc] # bound here
        found.append(_chosen(subject, record).to_proto().SerializeToString(deterministic=True))
    return tuple(found)


def _chosen(subject: SubjectCoverage, record: SignedTuning | None) -> SignedTuning:
    now = None if record is None else record.record.state.winner
    if record is None or now != subject.winner:
        raise CallerError(
            f"{subject.name}: the fleet now chooses candidate {now}; the certificate states"
            f" {subject.winner}: run `kernelfarm warm` again, which compiles what is chosen now"
        )
    return record
