"""Makes a failing input small: parts are left out as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError, Message

from tests.fuzz.messages import message_class
from tests.fuzz.mutate_message import is_map
from tests.fuzz.replay import replay
from tests.fuzz.trials import Trial
from tests.fuzz.watched import Limits

Change = Callable[[Message], None]


def minimized(trial: Trial, data: bytes, limits: Limits) -> bytes:
    """The smallest input found that fails as this one does; bytes that are no message stay."""
    wanted = _kind(replay(trial, data, limits))
    kind = message_class(trial.message)
    try:
        best = kind.FromString(data)
    except DecodeError:
        return data
    if not wanted or _kind(replay(trial, best.SerializeToString(), limits)) != wanted:
        return data
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(best):
            if _kind(replay(trial, smaller.SerializeToString(), limits)) == wanted:
                best, is_smaller = smaller, True
                break
    return bytes(best.SerializeToString())


def _kind(signature: str) -> str:
    """The trial, the class of the error and where: what it says may change."""
    return ":".join(signature.split(":")[:3])


def _smaller(message: Message) -> Iterator[Message]:
    """Messages with less in them, those with much less first."""
    places = sorted(_places(message, ()), key=lambda place: (len(place[0]), -place[2]))
    for path, name, count in places:
        if count == 0:
            yield _changed(message, path, lambda part, name=name: part.ClearField(name))
            continue
        step = count
        while step:
            for start in range(0, count, step):
                yield _changed(
                    message,
                    path,
                    lambda part, n=name, a=start, b=step: getattr(part, n).__delitem__(
                        slice(a, a + b)
                    ),
                )
            step //= 2


Path = tuple[tuple[str, int], ...]


def _places(message: Message, path: Path) -> Iterator[tuple[Path, str, int]]:
    """Every field that is set: where, its name, and how many items it has (0: it is no list)."""
    for field, value in message.ListFields():
        if is_map(field) or not field.is_repeated:
            yield path, field.name, 0
            if field.message_type is not None and not is_map(field):
                yield from _places(value, (*path, (field.name, -1)))
            continue
        yield path, field.name, len(value)
        if field.message_type is not None:
            for number, item in enumerate(value):
                yield from _places(item, (*path, (field.name, number)))


def _changed(message: Message, path: Path, change: Change) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    part = copy
    for name, number in path:
        part = getattr(part, name)
        if number >= 0:
            part = part[number]  # type: ignore[index]
    change(part)
    return copy
