"""Calls about tuning over a real socket, as one process with one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceStub
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S


class TuningCaller:
    """One process; failures raise as `KernelfarmError`."""

    def __init__(self, endpoint: str, token: str = "", name: int = 0) -> None:
        self._channel = open_blocking_channel(endpoint, None, token)
        self._stub = TuningServiceStub(self._channel)
        self.name = bytes([name]) * 16

    def look_up(self, asked: api.TuningSubject, **more: Any) -> api.LookupTuningResponse:
        """What the farm says about a subject; the caller can measure."""
        fields = {"reporter": self.name, "can_measure": True} | more
        return self._called("LookupTuning", api.LookupTuningRequest(subject=asked, **fields))

    def report(self, asked: api.TuningSubject, times_ns: Sequence[int], **more: Any) -> int:
        """Reports times; returns the winner."""
        fields = {"reporter": self.name, "times_ns": times_ns} | more
        request = api.ReportTuningRequest(subject=asked, **fields)
        return self._called("ReportTuning", request).winner.candidate

    def read(self, asked: api.TuningSubject) -> manifest_pb2.SignedVariant | None:
        """The signed record of a subject, if there are reports."""
        answer = self._called("ReadTuning", api.ReadTuningRequest(subject=asked))
        return answer.record if answer.HasField("record") else None

    def _called(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()
