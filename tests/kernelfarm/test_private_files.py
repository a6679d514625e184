"""What clients and farms keep is for their user alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelfarm.client.disk.files import MAX_TRACE_BYTES, read_sealed, write_sealed, write_whole
from kernelfarm.client.disk.folder import DiskTierWarning, tier_folder
from kernelfarm.client.disk.tier import DiskTier
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError
from kernelfarm.private_files import keep_private, make_private_folder, read_private
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY, make_keys
from kernelfarm.supervisor.supervisor import exclusive_data_dir
from tests.support.disk_tier_entries import BIG, put
from tests.support.farm import Farm

UMASKS = (0o000, 0o002, 0o022, 0o077)
SOMEBODY = 65534
"""Another user; only the superuser can give files to one."""
needs_superuser = pytest.mark.skipif(
    os.geteuid() != 0, reason="only the superuser can be two users"
)


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def writable_by_others(root: Path) -> list[str]:
    """What lies below a folder, itself included, and others may write."""
    paths = [root, *root.rglob("*")]
    return [str(p) for p in paths if p.lstat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]


def modes(root: Path) -> set[int]:
    return {stat.S_IMODE(p.stat().st_mode) for p in (root, *root.rglob("*")) if p.is_dir()}


def test_every_folder_of_the_tier_is_for_its_user_alone(umask: int, tmp_path: Path) -> None:
    root = tmp_path / "home" / "cache" / "kernelfarm"
    tier = DiskTier(root, BIG)
    put(tier, 1)
    write_whole(root / "traces" / "ab" / "abcd.trace", b"x")
    write_sealed(root / "farms" / "f.json", b"{}")
    assert modes(tmp_path / "home") == {0o700}
    assert writable_by_others(tmp_path / "home") == []


def test_keys_and_a_farms_data_cannot_be_written_by_others(umask: int, tmp_path: Path) -> None:
    data = tmp_path / "farms" / "mine"
    with exclusive_data_dir(data):
        make_keys(data / "keys")
    assert modes(tmp_path / "farms") == {0o700, 0o755}  # anybody may read the public keys
    found = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (data / "keys").iterdir()}
    assert (found[TRACE_KEY], found[PUBLIC_KEYS]) == (0o600, 0o644)


def test_a_private_key_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / TRACE_KEY).symlink_to(tmp_path / "elsewhere")
    make_keys(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / TRACE_KEY).is_symlink()


def test_a_running_farm_leaves_nothing_that_others_may_write(farm: Farm) -> None:
    assert writable_by_others(farm.data_dir / "logs") == []
    assert writable_by_others(farm.data_dir / "keys") == []


UP = """
import os, sys
os.umask(0)
from kernelfarm.cli import main
sys.argv = ["kernelfarm", "up", "--vendors", "abacus", "--data-dir", sys.argv[1]]
try:
    main()
finally:
    print("umask", oct(os.umask(0)))
"""


def test_a_farm_is_started_with_a_umask_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UP, str(tmp_path / "data")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "umask 0o77" in done.stdout, done.stderr


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o707])
@pytest.mark.parametrize("part", ["", "traces", "farms", "programs", "blobs"])
def test_rights_that_others_have_on_our_folders_are_taken_away(
    part: str, mode: int, tmp_path: Path
) -> None:
    root = tmp_path / "tier"
    (root / "traces").mkdir(parents=True)
    (root / part).mkdir(exist_ok=True)
    (root / part).chmod(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tier_folder(client_settings(disk_cache_dir=root)) == root
    assert not (root / part).stat().st_mode & 0o022


def test_a_shared_folder_with_the_sticky_bit_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    keep_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@needs_superuser
def test_a_folder_of_another_user_that_others_may_write_is_refused_with_a_remedy(
    tmp_path: Path,
) -> None:
    root = tmp_path / "tier"
    root.mkdir()
    root.chmod(0o775)
    os.chown(root, SOMEBODY, SOMEBODY)
    with pytest.warns(DiskTierWarning, match=f"chmod go-w {root}.*KERNELFARM_DISK_CACHE_DIR"):
        assert tier_folder(client_settings(disk_cache_dir=root)) is None
    with pytest.raises(CallerError, match="chmod go-w"), exclusive_data_dir(root):
        pass


AS_ANOTHER = """
import os, sys
from pathlib import Path
from kernelfarm.private_files import keep_private, read_private
from kernelfarm.errors import CallerError
os.setgid(65534), os.setuid(65534)
for check in (lambda p: keep_private(p), lambda p: read_private(p / "theirs", 100)):
    try:
        print(check(Path(sys.argv[1])))
    except (CallerError, OSError) as error:
        print(type(error).__name__, error)
"""


@needs_superuser
def test_what_a_user_owns_is_not_trusted_by_another(tmp_path: Path) -> None:
    root = Path("/tmp", f"kernelfarm-{os.getpid()}")
    root.mkdir(0o755)
    try:
        (root / "theirs").write_text("theirs")
        (root / "theirs").chmod(0o644)
        os.chown(root, 65533, 65533)
        os.chown(root / "theirs", 65533, 65533)
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER, str(root)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        folder, file = done.stdout.splitlines()
        assert folder.startswith(f"CallerError {root} belongs to user 65533, expected 65534")
        assert file.startswith("PermissionError") and "another user may have written" in file
    finally:
        (root / "theirs").unlink()
        root.rmdir()


def test_files_larger_than_they_may_be_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="expected at most"):
        read_private(path, MAX_TRACE_BYTES)
    with pytest.raises(OSError, match="expected at most"):
        read_sealed(path)


def test_a_folder_is_made_where_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(OSError):
            make_private_folder(path)
