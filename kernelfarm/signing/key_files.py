"""Key files: one private key for each publisher, and a list of public keys for all readers.

private: {"space": "kernels", "private_key": BASE64}                     for its owner only
public:  [{"space": "kernels", "public_key": BASE64, "not_after_s": 1}]  `not_after_s` optional
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelfarm.errors import CallerError
from kernelfarm.private_files import READABLE_FOLDER_MODE, keep_private, make_private_folder
from kernelfarm.signing.keys import KEY_BYTES, Keyring, Signer, TrustedKey, new_signer
from kernelfarm.signing.manifest import Space

PROGRAM_KEY = "programs.key"
KERNEL_KEY = "kernels.key"
TRACE_KEY = "traces.key"
PUBLIC_KEYS = "public.json"
"""The names of a farm's key files within a folder."""

_PRIVATE = {PROGRAM_KEY: Space.PROGRAMS, KERNEL_KEY: Space.KERNELS, TRACE_KEY: Space.TRACES}


def make_keys(folder: Path) -> Keyring:
    """The public keys of a folder; a folder without keys gets a new key for each key space.

    A folder of an older version, without a key for traces, gets one.

    Raises:
        CallerError: the folder cannot be written, or has only some of the keys.
    """
    public = folder / PUBLIC_KEYS
    present = [name for name in (*_PRIVATE, PUBLIC_KEYS) if (folder / name).exists()]
    missing = {name: space for name, space in _PRIVATE.items() if name not in present}
    if not missing and public.exists():
        return read_keyring(public)
    if present and (set(missing) != {TRACE_KEY} or not public.exists()):
        raise CallerError(f"{folder} has only {', '.join(present)}; expected all keys or none")
    signers = {name: new_signer(space) for name, space in missing.items()}
    known = read_keyring(public).keys if public.exists() else ()
    try:
        make_private_folder(folder, READABLE_FOLDER_MODE)  # others may read the public keys
        keep_private(folder)
        for name, signer in signers.items():
            write_signer(folder / name, signer)
        write_keyring(public, [*known, *(signer.trusted for signer in signers.values())])
    except OSError as error:
        raise CallerError(f"cannot write keys into {folder}: {error}") from error
    return read_keyring(public)


def write_signer(path: Path, signer: Signer) -> None:
    """Writes a private key to a file that only its owner may read."""
    stored = {
        "space": signer.trusted.space.name.lower(),
        "private_key": base64.b64encode(signer.private_key).decode(),
    }
    # Not into an existing file, which may be a link, or be open in another process.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(stored, file)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_signer(path: Path, space: Space) -> Signer:
    """The signer whose private key is in a file.

    Raises:
        CallerError: the file cannot be read, is no private key, or is for another key space.
    """
    stored = _parsed(_text(path), path)
    try:
        named, key = _space(stored["space"]), _key(stored["private_key"])
    except (KeyError, TypeError, ValueError) as error:
        raise CallerError(f"{path} holds no valid private key: {error}") from error
    if named is not space:
        raise CallerError(f"{path} signs {named.name.lower()}; expected a key for {space.name}")
    return Signer(key, space)


def write_keyring(path: Path, keys: Iterable[TrustedKey]) -> None:
    """Replaces a file of public keys atomically: a reader finds either the old or the new keys.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(keyring_to_text(keys))
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def keyring_to_text(keys: Iterable[TrustedKey]) -> str:
    """The content of a file of public keys."""
    stored = [
        {
            "space": key.space.name.lower(),
            "public_key": base64.b64encode(key.public_key).decode(),
            **({} if key.not_after_s is None else {"not_after_s": key.not_after_s}),
        }
        for key in keys
    ]
    return json.dumps(stored, indent=1) + "\n"


def read_keyring(path: Path) -> Keyring:
    """The public keys of a file.

    Raises:
        CallerError: the file cannot be read, or is no list of public keys.
    """
    return keyring_from_text(_text(path), path)


def keyring_from_text(text: str, path: Path) -> Keyring:
    """The public keys of a file's content; messages name its path.

    Raises:
        CallerError: it is no list of public keys.
    """
    stored = _parsed(text, path)
    try:
        return Keyring(
            TrustedKey(_key(item["public_key"]), _space(item["space"]), item.get("not_after_s"))
            for item in stored
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CallerError(f"{path} holds no valid list of public keys: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise CallerError(f"cannot read keys from {path}: {error}") from error


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CallerError(f"cannot read keys from {path}: {error}") from error


def _space(name: str) -> Space:
    try:
        return Space[name.upper()]
    except KeyError:
        raise ValueError(f"space {name!r}; expected programs, kernels or traces") from None


def _key(text: str) -> bytes:
    key = base64.b64decode(text, validate=True)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes; expected {KEY_BYTES}")
    return key
