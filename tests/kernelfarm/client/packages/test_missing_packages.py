"""`kernelfarm explain-miss --packages` names what differs from the nearest package."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring, write_keyring
from tests.support import packaged_models
from tests.support.package_machines import (
    call_model,
    header_of,
    machine,
    of_packages,
    repacked,
    sign,
)
from tests.support.packaged_models import Compared
from tests.support.trace_machines import Fleet


def explained(*options: str) -> str:
    """What the command prints."""
    endpoint = os.environ["KERNELFARM_ENDPOINT"]
    ended = CliRunner().invoke(
        make_app(), ["explain-miss", "--packages", "--endpoint", endpoint, *options]
    )
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.parametrize("what", ["attribute", "global", "code", "parameter", "rows"])
def test_it_names_the_fact_that_differs(
    fleet: Fleet, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(fleet, publishes=True)
    call_model(fleet, Compared(fleet.number))
    machine(fleet)
    model, rows = Compared(fleet.number), 5
    match what:
        case "attribute":
            model.number *= 2
            # The packages of other tests, whose models have other numbers, are as near.
            expected = f"number=float {model.number}"
        case "global":
            monkeypatch.setattr(packaged_models, "SHIFT", 0.75)
            expected = (
                "value tests.support.packaged_models:SHIFT: here float 0.75; package float 0.5"
            )
        case "code":
            monkeypatch.setattr(packaged_models, "shifted", lambda x: x + 2.0)
            expected = "code tests.support.packaged_models:shifted: here absent; package"
        case "parameter":
            model.first.bias.requires_grad_(False)
            expected = "parameter first.bias: here Parameter torch.float32 cpu grad=False"
        case _:
            rows = 6
            expected = "of shape (6, 12); package Tensor"
    call_model(fleet, model, rows)
    output = explained()
    assert "is not found: key" in output
    assert "  of tests.support.packaged_models:Compared for cpu:" in output
    assert expected in output


def test_it_names_the_version_that_differs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    monkeypatch.setattr("torch.__version__", "2.99.0")
    call_model(fleet)
    assert "  torch: requested 2.99.0; nearest 2." in explained()


def test_it_says_why_a_package_was_refused_here(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)

    def change(signed: object) -> None:
        first, *rest = header_of(signed).sources
        repacked(signed, None, sources=(replace(first, sha256="0" * 64), *rest))
        sign(signed, fleet.signer())

    fleet.meddling.trace_change = of_packages(change)
    assert call_model(fleet)["refused.packages.source_changed"] == 1
    fleet.meddling.trace_change = lambda _: None
    output = explained()
    assert "is found" in output and "this client trusts it" in output
    assert "refused here: SOURCE_CHANGED: " in output and ", lines " in output
    # Once a package answers, there is nothing to explain.
    disk = os.environ["KERNELFARM_DISK_CACHE_DIR"].rpartition("/")[2]
    machine(fleet, disk=disk)
    assert call_model(fleet)["packages.loaded"] == 1
    assert "no call without a package on this machine" in explained()


def test_it_compares_nothing_of_a_publisher_that_is_not_trusted(fleet: Fleet) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    pinned = fleet.folder / "pinned.json"
    known = read_keyring(fleet.keys / PUBLIC_KEYS).keys
    others = [key for key in known if key.space is not Space.TRACES]
    write_keyring(pinned, [*others, new_signer(Space.TRACES).trusted])
    machine(fleet, TRUSTED_KEYS_FILE=str(pinned))
    call_model(fleet, rows=6)
    output = explained()
    assert "the nearest one cannot be compared: manifest of traces" in output
    assert "input [0][0]" not in output
