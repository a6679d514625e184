"""The files of bundles: deterministic, checked by digest, read within limits."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.client.bundle.layout import BundledProgram, open_bundle, writing_bundle
from kernelfarm.errors import CallerError, PoisonedBlobError


def program(number: int = 0) -> BundledProgram:
    blobs = [b"shared", b"blob %d" % number, b""]
    return BundledProgram(
        key=bytes([number]) * 32,
        target="cpu:x86-64-v3",
        models=("bert", "albert"),
        signed=b"signed %d" % number,
        traces=(b"trace %d" % number,),
        packages=(b"package %d" % number,),
        tuning=(b"tuning %d" % number,),
        blobs={hashlib.sha256(blob).digest(): blob for blob in blobs},
    )


def written(path: Path, *programs: BundledProgram) -> Path:
    with writing_bundle(path) as writer:
        for found in programs:
            writer.add(found)
    return path


@pytest.mark.parametrize("name", ["bundle", "bundle.tar"])
def test_a_bundle_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, program(1), program(0))
    assert [p.name for p in tmp_path.iterdir()] == [name]  # nothing temporary is left
    with open_bundle(path) as bundle:
        assert len(bundle) == 2
        for number, stored in enumerate(bundle.programs()):
            expected = program(number)
            assert stored.target == expected.target
            assert stored.annotations["dev.kernelfarm.models"] == "albert bert"
            assert stored.signed() == expected.signed
            assert list(stored.traces()) == list(expected.traces)
            assert list(stored.packages()) == list(expected.packages)
            assert list(stored.tuning()) == list(expected.tuning)
            for sha256, content in expected.blobs.items():
                assert stored.blob(sha256) == content


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    first = written(tmp_path / "a.tar", program(0), program(1))
    second = written(tmp_path / "b.tar", program(1), program(0))
    assert first.read_bytes() == second.read_bytes()


def test_a_bundle_is_an_oci_image_layout(tmp_path: Path) -> None:
    root = written(tmp_path / "bundle", program())
    assert json.loads((root / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((root / "index.json").read_bytes())
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    (described,) = index["manifests"]
    for name in root.glob("blobs/sha256/*"):
        assert hashlib.sha256(name.read_bytes()).hexdigest() == name.name
    manifest = json.loads(content_of(root, described))
    assert manifest["mediaType"] == described["mediaType"]
    assert content_of(root, manifest["config"]) == b"signed 0"
    assert len(manifest["layers"]) == 6
    for layer in manifest["layers"]:
        assert len(content_of(root, layer)) == layer["size"]


def content_of(root: Path, described: dict[str, str]) -> bytes:
    return (root / "blobs" / "sha256" / described["digest"].removeprefix("sha256:")).read_bytes()


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    root = written(tmp_path / "bundle", program())
    sha256 = hashlib.sha256(b"shared").hexdigest()
    for changed in (b"sharec", b"shared+", b""):
        (root / "blobs" / "sha256" / sha256).write_bytes(changed)
        with open_bundle(root) as bundle, pytest.raises((PoisonedBlobError, CallerError)):
            next(bundle.programs()).blob(bytes.fromhex(sha256))


def test_layers_of_unknown_types_are_skipped(tmp_path: Path) -> None:
    """As versions that know no tuning records skip these."""
    whole, bare = program(), replace(program(), tuning=())
    root = written(tmp_path / "bundle", whole)
    for path in root.glob("blobs/sha256/*"):
        content = path.read_bytes()
        if b"kernelfarm.tuning" in content:
            changed = content.replace(b"kernelfarm.tuning", b"kernelfarm.future")
            index = root / "index.json"
            name, size = hashlib.sha256(changed).hexdigest(), len(content)
            assert len(changed) == size
            path.with_name(name).write_bytes(changed)
            index.write_text(index.read_text().replace(path.name, name))
    with open_bundle(root) as bundle:
        (stored,) = bundle.programs()
        assert list(stored.tuning()) == list(bare.tuning)
        assert list(stored.traces()) == list(bare.traces)


def test_tuning_records_are_bounded_in_number_and_size(tmp_path: Path) -> None:
    many = replace(program(), tuning=tuple(b"%d" % number for number in range(4097)))
    with open_bundle(written(tmp_path / "many", many)) as bundle:
        (stored,) = bundle.programs()
        with pytest.raises(CallerError, match="has 4097 tuning records; expected at most 4096"):
            stored.tuning()
    large = replace(program(), tuning=(bytes(200_000),))
    with open_bundle(written(tmp_path / "large", large)) as bundle:
        (stored,) = bundle.programs()
        with pytest.raises(CallerError, match="has 200000 bytes; at most 131072"):
            list(stored.tuning())


def test_a_missing_file_is_an_error_that_says_which(tmp_path: Path) -> None:
    root = written(tmp_path / "bundle", program())
    sha256 = hashlib.sha256(b"shared").hexdigest()
    (root / "blobs" / "sha256" / sha256).unlink()
    with pytest.raises(CallerError, match=sha256), open_bundle(root) as bundle:
        next(bundle.programs()).blob(bytes.fromhex(sha256))
    with open_bundle(root) as bundle, pytest.raises(CallerError, match="the bundle has no blob"):
        next(bundle.programs()).blob(bytes(32))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("oci-layout", b'{"imageLayoutVersion": "2.0.0"}', "an OCI layout of version"),
        ("oci-layout", b" " * 2000, "is larger than 1024 bytes"),
        ("index.json", b"{}", "schemaVersion: Field required"),
        ("index.json", b"[" * 100_000, "Invalid JSON"),
    ],
)
def test_a_malformed_bundle_is_refused(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    root = written(tmp_path / "bundle", program())
    (root / name).write_bytes(content)
    with pytest.raises(CallerError, match=said), open_bundle(root):
        pass


def test_a_digest_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    root = written(tmp_path / "bundle", program())
    index = (root / "index.json").read_text()
    digest = json.loads(index)["manifests"][0]["digest"]
    (root / "index.json").write_text(index.replace(digest, "sha256:../../../etc/passwd"))
    with pytest.raises(CallerError, match=r"manifests\.0\.digest"), open_bundle(root):
        pass


def test_links_in_a_tar_file_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("oci-layout")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("index.json"), io.BytesIO())
    with pytest.raises(CallerError, match="has no oci-layout"), open_bundle(path):
        pass


def test_an_existing_name_is_not_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "bundle.tar", program())
    before = path.read_bytes()
    with pytest.raises(CallerError, match="exists"):
        written(path, program(1))
    assert path.read_bytes() == before


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), writing_bundle(tmp_path / "bundle") as writer:
        writer.add(program())
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"no tar file"])
def test_what_is_no_bundle_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bundle.tar"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CallerError, match="is no bundle"), open_bundle(path):
        pass
