"""Shell: the persistent state of a running erasure, so that another run can finish it.

One object per topic, `_erasures/<topic>.json` in the lake, from before the first change until the erasure is proven. It
contains the topic's former settings, places of records, and which log directories were searched without a finding, by a
digest of key or condition, never the key. One run at a time owns it. A run on another machine cannot be checked, so the
operator says if it was killed.
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

from broker.erasure.checks import ErasureRefused
from kafka_ds.topic.names import erasure_file

if TYPE_CHECKING:
    from broker.erasure.wanted import OffsetArray, Places
    from kafka_ds.delta.store.store import Store

Owner = dict[str, "str | int"]
# By digest and directory: the time of the search (seconds since 1970).
Searched = dict[str, dict[str, int]]
SEARCHED_S: Final = 24 * 3600


@dataclass(slots=True)
class ErasureState:
    """The state of one topic's erasure."""

    topic_id: str
    settings: dict[str, str | None] | None = None
    """The topic's former overrides by name (None: not set); None before the first run."""
    places: Places = field(default_factory=dict)
    owner: Owner | None = None
    """The run in progress."""
    searched: Searched = field(default_factory=dict)
    """Directories searched without a finding since the last finding anywhere; they expire after SEARCHED_S."""


def read(store: Store, topic: str, topic_id: str) -> ErasureState:
    """The state that an earlier run for this topic id has left, or an empty one. Raises ErasureRefused."""
    name = erasure_file(topic)
    with suppress(FileNotFoundError):
        try:
            found = json.loads(store.read(name))
            if found["topic_id"] == topic_id:
                places = {int(each): _unpacked(text) for each, text in found["places"].items()}
                settings = None if found["settings"] is None else dict(found["settings"])
                searched = _not_expired(found["searched"])
                return ErasureState(topic_id, settings, places, found["owner"], searched)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as problem:
            raise ErasureRefused(
                f"{name} in the lake cannot be read ({problem!r}): delete it, "
                "and check the topic's settings"
            ) from None
    return ErasureState(topic_id)


def claim(store: Store, topic: str, topic_id: str, *, takes_over: bool) -> ErasureState:
    """Become the owner, and get the state of earlier runs. Raises ErasureRefused."""
    owner: Owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "started_ns": time.time_ns(),
    }
    mine = ErasureState(topic_id, {}, {}, owner)
    if store.put_if_absent(erasure_file(topic), _encoded(mine)):
        return mine
    found = read(store, topic, topic_id)
    other = found.owner
    if other is not None and not takes_over and not _has_ended(other):
        raise ErasureRefused(
            f"another erasure of topic {topic} runs on {other.get('host')} as process "
            f"{other.get('process')}; if it was killed, use --resume"
        )
    mine = replace(found, settings=found.settings or {}, owner=owner)
    store.put_durable(erasure_file(topic), _encoded(mine))
    return mine


def write(store: Store, topic: str, state: ErasureState) -> None:
    """Write the state. Raises ErasureRefused if another run has taken over."""
    if read(store, topic, state.topic_id).owner != state.owner:
        raise ErasureRefused(f"another erasure of topic {topic} has taken over")
    store.put_durable(erasure_file(topic), _encoded(state))


def release(store: Store, topic: str, state: ErasureState, *, is_done: bool) -> None:
    """End the run; the topic's settings have been restored. Raises ErasureRefused as `write` does.

    Places are kept unless `is_done`: the next run finds rows of typed tables by them.
    """
    write(store, topic, state)
    places = {} if is_done else state.places
    left = replace(state, settings={}, places=places, owner=None)
    if left.places or left.searched:
        store.put_durable(erasure_file(topic), _encoded(left))
    else:
        store.delete(erasure_file(topic))


def _encoded(state: ErasureState) -> bytes:
    fields = {
        "topic_id": state.topic_id,
        "settings": state.settings,
        "places": {str(each): _packed(offsets) for each, offsets in state.places.items()},
        "owner": state.owner,
        "searched": state.searched,
    }
    return json.dumps(fields).encode()


def _packed(offsets: OffsetArray) -> str:
    """Delta-encoded: sorted offsets have small differences."""
    return base64.b64encode(
        zlib.compress(np.diff(offsets, prepend=0).astype("<i8").tobytes())
    ).decode()


def _unpacked(text: str) -> OffsetArray:
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
    """Whether the owner was a process of this machine that has ended."""
    if owner.get("host") != socket.gethostname():
        return False
    process = int(owner["process"])
    if process == os.getpid():
        return True  # The number was reused.
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
