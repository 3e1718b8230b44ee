"""Shell: what an erasure leaves behind while it runs, so that another run can finish it after a kill.

An object in the lake for each topic, `_erasures/<topic>.json`, from before the first change until the records are
proven to be gone. It holds the topic's own settings as they were, places of records, and which log directories were
searched in vain, for whom: by a digest, never the key. One run at a time owns it. Whether a run on another machine was
killed, nobody can see: a person says so.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from broker.erasure.unsettled import Unsettled
from kafka_ds.topic.names import erasure_file

if TYPE_CHECKING:
    from broker.erasure.wanted import Offsets, Places
    from kafka_ds.delta.store.store import Store

Owner = dict[str, "str | int"]
# Of digests: of directories the time of the search (seconds since 1970).
Searched = dict[str, dict[str, int]]
SEARCHED_S: Final = 24 * 3600


@dataclass(slots=True)
class Unfinished:
    """One topic's."""

    topic_id: str
    settings: dict[str, str | None] | None = None
    """The topic's own settings before they were changed, None: it had none of that name. None in all: no run began."""
    places: Places = field(default_factory=dict)
    owner: Owner | None = None
    """The run that has not ended."""
    searched: Searched = field(default_factory=dict)
    """Directories in which nothing was found since anything was found anywhere, for a day."""


def read(store: Store, topic: str, topic_id: str) -> Unfinished:
    """What an earlier run of this very topic has left, or nothing. Raises Unsettled."""
    name = erasure_file(topic)
    with suppress(FileNotFoundError):
        try:
            found = json.loads(store.read(name))
            if found["topic_id"] == topic_id:
                places = {int(each): _unpacked(text) for each, text in found["places"].items()}
                settings = None if found["settings"] is None else dict(found["settings"])
                searched = _not_expired(found["searched"])
                return Unfinished(topic_id, settings, places, found["owner"], searched)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as problem:
            raise Unsettled(
                f"{name} in the lake cannot be read ({problem!r}): remove it, "
                "and see that the topic's settings are yours"
            ) from None
    return Unfinished(topic_id)


def claim(store: Store, topic: str, topic_id: str, *, takes_over: bool) -> Unfinished:
    """Become the only run for a topic, and get what earlier ones have left. Raises Unsettled."""
    owner: Owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started_ns": time.time_ns(),
    }
    mine = Unfinished(topic_id, {}, {}, owner)
    if store.put_if_absent(erasure_file(topic), _encoded(mine)):
        return mine
    found = read(store, topic, topic_id)
    other = found.owner
    if other is not None and not takes_over and not _has_ended(other):
        raise Unsettled(
            f"another erasure of topic {topic} runs on {other.get('host')} as process "
            f"{other.get('process')}; if it was killed, say --resume"
        )
    mine = replace(found, settings=found.settings or {}, owner=owner)
    store.put_durable(erasure_file(topic), _encoded(mine))
    return mine


def write(store: Store, topic: str, unfinished: Unfinished) -> None:
    """Keep it. Raises Unsettled if another run has taken over."""
    if read(store, topic, unfinished.topic_id).owner != unfinished.owner:
        raise Unsettled(f"another erasure of topic {topic} has taken over")
    store.put_durable(erasure_file(topic), _encoded(unfinished))


def release(store: Store, topic: str, unfinished: Unfinished, *, is_done: bool) -> None:
    """The run ends, and none of the topic's settings is changed any more. Raises Unsettled as `write` does.

    Places are kept unless all is done: another run finds rows by them that nothing else names.
    """
    write(store, topic, unfinished)
    places = {} if is_done else unfinished.places
    left = replace(unfinished, settings={}, places=places, owner=None)
    if left.places or left.searched:
        store.put_durable(erasure_file(topic), _encoded(left))
    else:
        store.delete(erasure_file(topic))


def _encoded(unfinished: Unfinished) -> bytes:
    fields = {
        "topic_id": unfinished.topic_id,
        "settings": unfinished.settings,
        "places": {str(each): _packed(offsets) for each, offsets in unfinished.places.items()},
        "owner": unfinished.owner,
        "searched": unfinished.searched,
    }
    return json.dumps(fields).encode()


def _packed(offsets: Offsets) -> str:
    """They rise, so their distances are small."""
    return base64.b64encode(
        zlib.compress(np.diff(offsets, prepend=0).astype("<i8").tobytes())
    ).decode()


def _unpacked(text: str) -> Offsets:
    distances = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
    return np.cumsum(distances).astype(np.int64)


def _not_expired(searched: Searched) -> Searched:
    first = time.time() - SEARCHED_S
    return {
        digest: left
        for digest, places in searched.items()
        if (left := {where: at for where, at in places.items() if at >= first})
    }


def _has_ended(owner: Owner) -> bool:
    """Whether a process of this machine is no more."""
    if owner.get("host") != socket.gethostname():
        return False
    process = int(owner["process"])
    if process == os.getpid():
        return True  # An earlier one of that number.
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
