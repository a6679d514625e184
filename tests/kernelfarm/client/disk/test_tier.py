"""The disk tier by itself: many writers, killed writers, a limit, corrupt files."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.client import counters
from kernelfarm.client.diagnostics.disk import clear, usage, verify
from kernelfarm.client.disk.files import write_whole
from kernelfarm.client.disk.sweep import scan_tier, sweep
from kernelfarm.client.disk.tier import DiskTier
from kernelfarm.signing import Keyring, Space
from kernelfarm.signing.key_files import write_keyring
from kernelfarm.signing.keys import new_signer
from tests.support.disk_tier_entries import BIG, INCARNATION, SIGNER, key_of, put
from tests.support.farm import TIMEOUT_S, wait_until


def is_whole(tier: DiskTier, number: int) -> bool:
    """True if the program is found with all its contents; a hole is no hit and is cleaned up."""
    for entry in tier.entries(INCARNATION, ["default"], key_of(number)):
        if tier.contents(entry, entry.blobs) is not None:
            return True
        assert tier.entries(INCARNATION, ["default"], key_of(number)) == []
    return False


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from kernelfarm.client.disk.tier import DiskTier
from tests.support.disk_tier_entries import put
tier, number = DiskTier(Path(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3])
print("ready", flush=True)
while True:
    put(tier, number, 20_000)
    number = (number + 1) % 4000
"""


def writer(folder: Path, max_bytes: int, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(folder), str(max_bytes), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_killed_writers_leave_nothing_that_is_trusted(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, BIG)
    first = 0
    for round_number in range(3):
        processes = [writer(tmp_path, BIG, first), writer(tmp_path, BIG, first + 5)]
        wait_until(
            lambda r=round_number: usage(tmp_path).entries > 15 * (r + 1), TIMEOUT_S, "entries"
        )
        for process in processes:
            with process:
                os.kill(process.pid, signal.SIGKILL)
        first += 15
    found = usage(tmp_path).entries
    assert verify(tmp_path, Keyring([SIGNER.trusted])) == []
    assert sum(is_whole(tier, number) for number in range(4000)) == found > 45


def test_writers_and_sweepers_at_once_keep_the_limit_and_serve_no_part(tmp_path: Path) -> None:
    limit = 1_500_000
    processes = [writer(tmp_path, limit, 0), writer(tmp_path, limit, 2000)]
    tier = DiskTier(tmp_path, limit)
    whole = lookup = 0
    try:
        for turn in itertools.count():
            if turn >= 40 and lookup > 40 and whole > 20:
                break
            for entry in list(tmp_path.glob("programs/*/*/*/*.json"))[:5]:
                lookup += 1
                for found in tier.entries(
                    INCARNATION, ["default"], bytes.fromhex(entry.parent.name)
                ):
                    whole += tier.contents(found, found.blobs) is not None
            assert (
                usage(tmp_path).size_bytes < limit * 1.3
            )  # a sixteenth for each, and what is just written
    finally:
        for process in processes:
            with process:
                process.kill()
    kept = usage(tmp_path).entries
    poisoned = [
        f for f in verify(tmp_path, Keyring([SIGNER.trusted])) if f.reason != "MISSING_BLOB"
    ]
    assert poisoned == [] and kept > 5


def test_what_was_used_longest_ago_goes_first_and_shared_blobs_stay(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, BIG)
    for number in range(10):
        put(tier, number)
        (entry,) = tier.entries(INCARNATION, ["default"], key_of(number))
        os.utime(entry.path, (1000 + number, 1000 + number))
    (oldest,) = tier.entries(INCARNATION, ["default"], key_of(0))
    tier.touch(oldest)
    before = usage(tmp_path)
    gone = sweep(tmp_path, before.size_bytes * 2 // 3)
    assert 0 < gone < 8
    assert [is_whole(tier, number) for number in range(10)] == [
        True, *[False] * gone, *[True] * (9 - gone)
    ]  # fmt: skip
    assert usage(tmp_path).blobs == before.blobs - 3 * gone
    assert sweep(tmp_path, before.size_bytes) == 0


def test_leftovers_and_unnamed_blobs_go_when_space_is_needed(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, BIG)
    put(tier, 1)
    tier.blobs.put(hashlib.sha256(b"orphan" * 999).digest(), b"orphan" * 999)
    write_whole(tmp_path / "blobs" / "ab" / "half.tmp", b"half" * 2000)
    for file in tmp_path.glob("blobs/*/*"):
        os.utime(file, (1000, 1000))
    size_bytes = usage(tmp_path).size_bytes
    assert sweep(tmp_path, size_bytes - 1) == 0
    census = scan_tier(tmp_path)
    assert (len(census.blobs), census.leftovers, len(census.entries)) == (4, (), 1)
    assert is_whole(tier, 1)


def test_a_program_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    put(DiskTier(tmp_path, 5000), 1)
    assert usage(tmp_path).entries == 0


def test_a_folder_that_cannot_be_written_is_counted_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("no folder")
    counters.reset()
    put(DiskTier(tmp_path, BIG), 1)
    assert counters.snapshot()["disk.write_failures"] == 1


@pytest.mark.parametrize("kind", ["poison", "hole", "forge", "cut", "move"])
def test_verify_reports_corrupt_files_and_removes_them(kind: str, tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, BIG)
    put(tier, 1)
    put(tier, 2)
    (entry,) = tier.entries(INCARNATION, ["default"], key_of(1))
    blob = tier.blobs.path(entry.blobs[0])
    keyring, reason = Keyring([SIGNER.trusted]), ""
    if kind == "poison":
        blob.write_bytes(b"x")
        reason = "POISONED_BLOB"
    elif kind == "hole":
        blob.unlink()
        reason = "MISSING_BLOB"
    elif kind == "forge":
        keyring, reason = Keyring([new_signer(Space.PROGRAMS).trusted]), "UNTRUSTED_KEY"
    elif kind == "cut":
        entry.path.write_bytes(entry.path.read_bytes()[:99])
        reason = "MALFORMED_MESSAGE"
    else:
        entry.path.rename(tier.entries(INCARNATION, ["default"], key_of(2))[0].path)
        reason = "MANIFEST_MISMATCH"
    assert {fault.reason for fault in verify(tmp_path, keyring)} >= {reason}
    verify(tmp_path, keyring)  # a poisoned blob leaves a hole
    assert verify(tmp_path, keyring) == []
    assert not is_whole(tier, 1)


def test_clear_removes_everything_and_writers_go_on(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, BIG)
    put(tier, 1)
    assert clear(tmp_path) > 2000
    assert usage(tmp_path).size_bytes == 0 and not is_whole(tier, 1)
    put(tier, 1)
    assert is_whole(tier, 1)


def test_the_command_line_reports_verifies_and_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = tmp_path / "public.json"
    write_keyring(pinned, [SIGNER.trusted])
    monkeypatch.setenv("KERNELFARM_DISK_CACHE_DIR", str(tmp_path / "tier"))
    monkeypatch.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(pinned))
    tier, run = DiskTier(tmp_path / "tier", BIG), CliRunner().invoke
    put(tier, 1)
    put(tier, 2)
    app = make_app()
    assert "programs  2" in run(app, ["cache", "info"]).stdout
    assert run(app, ["cache", "verify"]).exit_code == 0
    (entry,) = tier.entries(INCARNATION, ["default"], key_of(1))
    tier.blobs.path(entry.blobs[0]).write_bytes(b"damage")
    reported = run(app, ["cache", "verify"])
    assert (reported.exit_code, "POISONED_BLOB" in reported.stdout) == (1, True)
    assert run(app, ["cache", "clear"]).exit_code == 0
    assert "programs  0" in run(app, ["cache", "info"]).stdout
