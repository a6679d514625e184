"""`kernelfarm explain-miss --traces`: why this machine traced what others had traced already."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.client.diagnostics.local_traces import local_traces
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.digest import trace_digest
from kernelfarm.signing import Space
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring, write_keyring
from tests.support.command_line import run_command
from tests.support.trace_machines import Fleet, traces_made


def explained(*asked: str) -> str:
    return run_command("explain-miss", "--traces", *asked)


def differing(output: str) -> dict[str, tuple[str, str]]:
    """The requested and the nearest value by part."""
    lines = re.findall(r"^  (\w+): requested (.*); nearest (.*)$", output, re.MULTILINE)
    return {part: (requested, nearest) for part, requested, nearest in lines}


def test_a_published_trace_is_found_and_trusted(fleet: Fleet) -> None:
    disk = fleet.machine(publishes=True)
    assert f"no traces on this machine (in {disk})" in explained()
    fleet.works()
    (trace,) = local_traces(disk)
    assert trace_digest(trace.parts) == trace.digest
    output = explained()
    assert f"trace {trace.digest.hex()} is found\n  this client trusts it\n" in output
    assert re.search(r"^  its program [0-9a-f]{64} is found$", output, re.MULTILINE)


def test_the_part_that_differs_is_explained(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    disk = fleet.machine()
    fleet.works(fallback_random=True)
    (trace,) = local_traces(disk)
    output = explained()
    assert f"trace {trace.digest.hex()} is not found: key" in output
    with_it = "deterministic=False, fallback_random=True"
    assert differing(output) == {"options": (with_it, with_it.replace("True", "False"))}
    # By its digest, too; of one that was never here nothing is known.
    assert explained(trace.digest.hex()) == output
    assert "no similar entry exists" in explained("0" * 64)


def test_a_graph_of_other_numbers_is_the_nearest(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    fleet.machine()
    fleet.number += 0.25
    fleet.works()
    assert set(differing(explained())) == {"graph"}


def test_the_tag_that_was_invalidated_is_explained(fleet: Fleet) -> None:
    fleet.machine(publishes=True, MODEL="explained@1")
    fleet.works()
    with CacheAdmin(fleet.farm.endpoint) as admin:
        admin.invalidate(["model:explained@1"])
    fleet.machine(MODEL="explained@1")
    fleet.works()
    output = explained()
    assert "is not found: epoch" in output
    nearest = differing(output)["tag"][1]
    assert nearest == "model:explained@1 was invalidated after it was made"


def test_a_client_that_does_not_trust_a_trace_reports_why(fleet: Fleet) -> None:
    fleet.machine(publishes=True)
    fleet.works()
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    write_keyring(pinned, [key for key in known if key.space is not Space.TRACES])
    fleet.machine(TRUSTED_KEYS_FILE=str(pinned))
    fleet.works()
    assert traces_made() == 1
    output = explained()
    refused = "does not use shared traces: only this client's own: no key for traces is trusted"
    assert refused in output
    assert "is found\n  this client does not trust it: UNTRUSTED_KEY: " in output


@pytest.mark.parametrize("source", ["model.pt2", "12ab"])
def test_what_is_no_digest_is_refused(source: str) -> None:
    shown = CliRunner().invoke(make_app(), ["explain-miss", "--traces", source])
    assert shown.exit_code != 0
    assert "not a digest of 64 hex digits" in str(shown.exception)
