"""The public API for measured times, by which clients choose among the candidates of a kernel."""

from __future__ import annotations

import hashlib

import grpc.aio

from frontend_svc.cache.signed_tuning import TuningSigner
from frontend_svc.cache.tenant_caches import TenantCaches
from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.identity import CACHE_USERS, Role, current_identity
from kernelfarm.tuning import REPORTER_BYTES, TuningState
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceServicer
from kernelfarm.wire.tuning import check_times, tuning_subject_from_proto

TUNING_SERVICE = "kernelfarm.v1.TuningService"

_RETRY_AFTER_MS = 2000

Context = grpc.aio.ServicerContext[object, object]


class TuningService(TuningServiceServicer):
    """Implements `kernelfarm.v1.TuningService`."""

    def __init__(self, tenant_caches: TenantCaches, signer: TuningSigner) -> None:
        self._tenant_caches = tenant_caches
        self._signer = signer

    async def LookupTuning(
        self, request: api.LookupTuningRequest, context: Context
    ) -> api.LookupTuningResponse:
        """Finds the fastest candidate, and asks some callers to measure."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        subject, reporter = tuning_subject_from_proto(request.subject), _reporter(request.reporter)
        can_measure = request.can_measure and not identity.roles.isdisjoint(
            (Role.MEMBER, Role.WARMER)
        )
        tuning = self._tenant_caches.of(identity.namespace_config).tuning
        state = await tuning.find(subject, reporter, can_measure=can_measure)
        return api.LookupTuningResponse(
            winner=_winner(state),
            should_measure=state.may_measure,
            retry_after_ms=0 if state.is_settled else _RETRY_AFTER_MS,
        )

    async def ReportTuning(
        self, request: api.ReportTuningRequest, context: Context
    ) -> api.ReportTuningResponse:
        """Stores the times that a caller measured."""
        identity = current_identity()
        identity.require(Role.MEMBER, Role.WARMER)
        subject, reporter = tuning_subject_from_proto(request.subject), _reporter(request.reporter)
        check_times(request.times_ns, subject.candidates)
        tuning = self._tenant_caches.of(identity.namespace_config).tuning
        return api.ReportTuningResponse(
            winner=_winner(await tuning.add(subject, reporter, request.times_ns))
        )

    async def ReadTuning(
        self, request: api.ReadTuningRequest, context: Context
    ) -> api.ReadTuningResponse:
        """Signs all reports on a subject."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        subject = tuning_subject_from_proto(request.subject)
        tenant_cache = self._tenant_caches.of(identity.namespace_config)
        return api.ReadTuningResponse(record=await self._signer.record(tenant_cache, subject))


def _reporter(reporter: bytes) -> str:
    """A caller's name among the reports: that of its process, and the credential that it has."""
    if len(reporter) != REPORTER_BYTES:
        raise CallerError(f"a reporter of {len(reporter)} bytes; expected {REPORTER_BYTES}")
    credential = current_identity().credential.encode()
    return hashlib.sha256(reporter + credential).hexdigest()[: 2 * REPORTER_BYTES]


def _winner(state: TuningState) -> api.TuningWinner | None:
    if state.winner is None:
        return None
    return api.TuningWinner(candidate=state.winner, reports=state.reports)
