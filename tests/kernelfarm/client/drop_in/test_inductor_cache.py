"""Inductor's remote caches at the farm: processes that compile for the CPU, with a folder each."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.drop_in.shared_files import joined
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as pb
from kernelfarm.wire.manifest import manifest_from_proto, manifest_to_proto
from tests.support.drop_in_programs import (
    WITH_KERNEL,
    WITHOUT_KERNEL,
    compile_with_inductor,
    publishing,
)
from tests.support.farm import Farm
from tests.support.tampering_proxy import TamperingFarm
from tests.support.trace_machines import Fleet

BOTH = (WITH_KERNEL, WITHOUT_KERNEL)


@pytest.fixture(scope="module")
def published_number(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The number in two graphs whose code one process publishes for all tests."""
    meddling = TamperingFarm(farm.endpoint)
    with pytest.MonkeyPatch.context() as environment:
        folder = tmp_path_factory.mktemp("publisher")
        fleet = Fleet(farm, meddling, meddling.start(), folder, environment)
        seen = compile_with_inductor(fleet, "publisher", BOTH, **publishing(fleet))
        meddling.stop()
    assert (seen["hit"], seen["miss"]) == (0, 2), seen["said"]
    assert seen["counters"]["inductor_cache.farm.published"] == 2
    return fleet.number


@pytest.fixture
def published(fleet: Fleet, published_number: float) -> Fleet:
    """Machines that compile the published graphs."""
    fleet.number = published_number
    return fleet


def test_a_process_with_an_empty_folder_lowers_no_graph(published: Fleet) -> None:
    fleet = published
    seen = compile_with_inductor(fleet, "reader", BOTH)
    assert (seen["hit"], seen["miss"]) == (2, 0), seen["said"]
    assert seen["counters"]["inductor_cache.farm.hits"] == 2
    assert dict(fleet.meddling.calls) == {"LookupTrace": 2}
    assert not seen["warnings"]


class Mark:
    """Makes a folder when it is unpickled, and then fails, so that Inductor compiles."""

    def __init__(self, folder: Path) -> None:
        self._code = f"import os; os.mkdir({str(folder)!r}); raise ValueError('a mark')"

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code,)


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_pickle_is_loaded_only_if_a_pinned_publisher_signed_it(
    published: Fleet, is_trusted: bool
) -> None:
    """The pickle makes a folder; with a trusted key it does so, which shows that it would run."""
    fleet = published
    signer = fleet.signer() if is_trusted else new_signer(Space.TRACES)
    mark = fleet.folder / "unpickled"
    pickled = pickle.dumps(Mark(mark))
    value = {"data": base64.b64encode(pickled).decode(), "time_taken_ms": 0}

    def change(signed: manifest_pb2.SignedVariant) -> None:
        trace = pb.Trace.FromString(signed.content)
        trace.entry = joined("inductor", {"value": json.dumps(value).encode()})
        signed.content = trace.SerializeToString()
        manifest = replace(manifest_from_proto(signed.manifest), content=blob_ref(signed.content))
        signed.manifest.CopyFrom(manifest_to_proto(signer.sign(manifest)))

    fleet.meddling.trace_change = change
    seen = compile_with_inductor(fleet, "reader")
    assert mark.exists() == is_trusted
    assert (seen["hit"], seen["warnings"]) == (0, int(not is_trusted))
    assert seen["counters"].get("refused.drop_in.untrusted_key", 0) == (0 if is_trusted else 1)


def test_without_a_farm_inductor_compiles_with_one_warning(fleet: Fleet) -> None:
    fleet.meddling.stop()
    seen = compile_with_inductor(fleet, "alone")
    assert (seen["hit"], seen["miss"], seen["warnings"]) == (0, 1, 1)
    fleet.meddling.start()


def test_the_environment_alone_installs_the_cache(published: Fleet) -> None:
    fleet = published
    seen = compile_with_inductor(
        fleet, "by-environment", install="", KERNELFARM_INDUCTOR_CACHE="on"
    )
    assert (seen["hit"], seen["miss"], seen["warnings"]) == (1, 0, 0), seen["said"]
    assert seen["counters"]["inductor_cache.farm.hits"] == 1


def test_with_a_wrong_variable_inductor_works_alone_and_warns(published: Fleet) -> None:
    """The process calls what PyTorch calls when it is imported, which would take seconds."""
    fleet = published
    install = 'os.environ["KERNELFARM_INDUCTOR_CACHE"] = "wrong"; kernelfarm.autoload()'
    seen = compile_with_inductor(fleet, "wrong", install=install)
    assert (seen["hit"], seen["miss"], seen["warnings"]) == (0, 1, 1), seen["said"]
    assert not fleet.meddling.calls
