"""Files of another compiler's cache, at the farm: found, checked and published like traces.

    the content that is signed    `kernelfarm.v1.Trace`: the address in place of a program's key,
                                  no facts, and the files as its `entry`
    the entry                     a header in JSON (kind, names, sizes), and the files, compressed

The farm never reads an entry. All files of an address are one entry, so that a reader never
combines files of two publishers.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from kernelfarm.client import counters
from kernelfarm.client.disk.files import sealed_with_header, unsealed_with_header
from kernelfarm.client.drop_in.fail_open import warn_once
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.traces.signed_entries import SignedEntries
from kernelfarm.errors import KernelfarmError, MalformedMessageError
from kernelfarm.signing.tags import pass_tag
from kernelfarm.v1 import trace_service_pb2 as pb

Files = Mapping[str, bytes]
"""Contents by the names of the files."""

MAX_FILES_BYTES = 64 << 20
"""Of all files of an entry before compression: a small entry cannot fill a reader's memory."""

MAX_ENTRY_BYTES = 4 << 20
"""No farm accepts a larger message (`KERNELFARM_MAX_TRACE_BYTES`)."""

_MAX_FILES = 64
_NAME = re.compile(r"(?!\.\.?$)(?!__grp__)[^/\\\0]{1,255}")
"""One file of a folder. Triton would use what a file `__grp__...` lists."""


class SharedFiles(SignedEntries[Files]):
    """Finds and publishes the files of one address, which `parts` state."""

    keeps_in_memory = False
    has_program = False
    kind: ClassVar[str]

    def __init__(self, access: FarmAccess, parts: Mapping[str, str]) -> None:
        super().__init__(access, {**parts, "cache": f"{self.kind} 1"})

    def files(self) -> Files | None:
        """The files, from disk or farm; errors are counted, and the first one is a warning."""
        self._miss = None  # of an earlier look-up
        found = self.find()
        return None if found is None else found.entry

    def publish(self, files: Files) -> None:
        """Publishes the files, if this client may and the farm reported a miss.

        Raises:
            CallerError: the private key cannot be read.
        """
        if not self.may_publish:
            return
        entry = joined(self.kind, files)
        if len(entry) > MAX_ENTRY_BYTES:
            self._note("not_published", "too_large")
            warn_once(
                f"an entry of the {self.kind} cache has {len(entry)} bytes; the farm accepts at"
                f" most {MAX_ENTRY_BYTES}: it is not published"
            )
            self._end_claim()
            return
        trace = pb.Trace(program_key=self.digest, entry=entry)
        content = trace.SerializeToString(deterministic=True)
        if not self._publish(content, (pass_tag(f"{self.kind}-cache"),)):
            self._end_claim()

    def note_wait(self) -> None:
        """Counts that this process waits for another one that makes the files."""
        self._note("waited")

    def note_vain_wait(self) -> None:
        """Counts that the files were not there when the time to wait was over."""
        self._note("miss")
        self._note("miss_reason", "in_flight")

    def _end_claim(self) -> None:
        """Lets processes that wait for files which this one does not publish compile them."""
        if self.claim is None or not self.claim.duration_s:
            return
        self.claim = replace(self.claim, duration_s=0.0, is_repeated=True)
        with suppress(KernelfarmError):  # claims end by themselves
            self._look_up()

    def _decoded(self, trace: pb.Trace) -> Files:
        if trace.program_key != self.digest:
            raise MalformedMessageError(
                f"files of address {trace.program_key.hex()[:16]}; expected"
                f" {self.digest.hex()[:16]}"
            )
        return parted(self.kind, trace.entry)

    def _note_refusal(self, error: KernelfarmError) -> None:
        counters.count_refusal("drop_in", error)
        warn_once(f"an entry of the {self.kind} cache is refused: {error}")

    def _note(self, event: str, reason: str = "") -> None:
        super()._note(event, reason)
        if event == "failure":
            warn_once(f"a look-up in the {self.kind} cache failed ({reason})")


def joined(kind: str, files: Files) -> bytes:
    """The entry with these files."""
    header = {"kind": kind, "sizes": {name: len(content) for name, content in files.items()}}
    return sealed_with_header(json.dumps(header), zlib.compress(b"".join(files.values())))


def parted(kind: str, entry: bytes) -> Files:
    """The files of an entry of this kind.

    Raises:
        MalformedMessageError: it is of another kind, too large, or damaged.
    """
    try:
        header, body = unsealed_with_header(entry)
        sizes = _sizes(kind, json.loads(header))
        reader = zlib.decompressobj()
        rest = reader.decompress(body, MAX_FILES_BYTES)
    except (ValueError, RecursionError, zlib.error) as error:
        raise MalformedMessageError(f"not an entry of the {kind} cache: {error}") from error
    if not reader.eof or reader.unused_data or sum(sizes.values()) != len(rest):
        raise MalformedMessageError(f"an entry of the {kind} cache without the stated bytes")
    files, begin = {}, 0
    for name, size in sizes.items():
        files[name] = rest[begin : begin + size]
        begin += size
    return files


def _sizes(kind: str, header: Any) -> dict[str, int]:
    if not isinstance(header, dict) or header.keys() != {"kind", "sizes"}:
        raise ValueError("a header of other fields")
    sizes = header["sizes"]
    if header["kind"] != kind or not isinstance(sizes, dict) or len(sizes) > _MAX_FILES:
        raise ValueError("another kind, or too many files")
    for name, size in sizes.items():
        if not _NAME.fullmatch(name) or type(size) is not int or size < 0:
            raise ValueError("a file without a plain name and a size")
    return sizes
