"""Calls of the farm's TuningService: the fastest candidate of a kernel, and reports of times."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kernelfarm import spans
from kernelfarm.client.farm.channel import stub_of
from kernelfarm.client.farm.checked_tuning import SignedTuning, check_tuning, stated_tuning
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.loaders.tuned_kernels import Advice
from kernelfarm.errors import MalformedMessageError
from kernelfarm.tuning import TuningSubject
from kernelfarm.v1 import tuning_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto
from kernelfarm.wire.tuning import tuning_subject_to_proto

if TYPE_CHECKING:
    import grpc

    from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceStub

_LOOKUP_S = 1.0
_REPORT_S = 10.0
_REPORTER_BYTES = 16


class ReporterName:
    """The random name of this process among the reports; a forked child gets its own."""

    def __init__(self) -> None:
        self.name = b""
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Draws another name."""
        self.name = os.urandom(_REPORTER_BYTES)


PROCESS: Final = ReporterName()


class FarmTuning:
    """The fleet of one farm, over a client's channel."""

    def __init__(
        self,
        client: FarmClient,
        check: Callable[[], None] = lambda: None,
        reporter: ReporterName = PROCESS,
    ) -> None:
        """`check` raises an error while the farm should not be asked."""
        self._client = client
        self._check = check
        self._reporter = reporter
        self._peer = f"the farm at {client.settings.endpoint}"

    @spans.in_span("LookupTuning")
    def advice(self, tuned: TuningSubject, *, can_measure: bool) -> Advice:
        """What to do for a kernel.

        Raises:
            KernelfarmError: the farm does not say within a second.
        """
        self._check()
        request = pb.LookupTuningRequest(
            subject=tuning_subject_to_proto(tuned),
            reporter=self._reporter.name,
            can_measure=can_measure,
        )

        def attempt(channel: grpc.Channel, remaining_s: float) -> pb.LookupTuningResponse:
            return _stub(channel).LookupTuning(request, timeout=remaining_s)

        answer = self._client.asked(attempt, _LOOKUP_S)
        winner = answer.winner.candidate if answer.HasField("winner") else None
        if winner is not None and winner >= tuned.candidates:
            raise MalformedMessageError(
                f"{self._peer} names candidate {winner}; expected one of {tuned.candidates}"
            )
        is_asked = answer.should_measure and can_measure
        return Advice(None if is_asked else winner, is_asked, answer.retry_after_ms / 1e3)

    @spans.in_span("ReadTuning")
    def record(self, subject: TuningSubject) -> SignedTuning | None:
        """All reports on a subject as the farm signs them; None without reports.

        Raises:
            IntegrityError: no trusted key signed them for this subject.
            KernelfarmError: the farm does not say.
        """
        request = pb.ReadTuningRequest(subject=tuning_subject_to_proto(subject))

        def attempt(channel: grpc.Channel, remaining_s: float) -> pb.ReadTuningResponse:
            return _stub(channel).ReadTuning(request, timeout=remaining_s)

        answer = self._client.asked(attempt, _REPORT_S)
        if not answer.HasField("record"):
            return None
        client, sent = self._client, answer.record
        stated = stated_tuning(manifest_from_proto(sent.manifest), sent.content)
        check_tuning(stated, client.settings.namespaces, client.verifier.check, subject)
        return stated

    @spans.in_span("ReportTuning")
    def report(self, tuned: TuningSubject, times_ms: Sequence[float]) -> None:
        """Reports measured times.

        Raises:
            KernelfarmError: the farm does not take the report.
        """
        times_ns = [round(time_ms * 1e6) for time_ms in times_ms]
        request = pb.ReportTuningRequest(
            subject=tuning_subject_to_proto(tuned), reporter=self._reporter.name, times_ns=times_ns
        )

        def attempt(channel: grpc.Channel, remaining_s: float) -> pb.ReportTuningResponse:
            return _stub(channel).ReportTuning(request, timeout=remaining_s)

        self._client.asked(attempt, _REPORT_S)


def _stub(channel: grpc.Channel) -> TuningServiceStub:
    from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceStub  # noqa: PLC0415 -- has gRPC

    return stub_of(TuningServiceStub, channel)
