"""Pure: the last commits of the metadata log in memory, for brokers that follow by wire.

Rules of this file:
- It holds every commit after some version, without a gap, so that a follower beyond that version needs no table.
- Bytes are made once: with the commit if there are other brokers, otherwise at the first request, so that a lone broker
  never pays for them. They are the bytes of the log without snapshots, which tell a follower nothing new.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from broker.cluster.events import Event, from_json, to_json

COMMITS_MAX = 1_000
EVENTS_MAX = 50_000


class Entry:
    """One commit, as events and, once asked for, as bytes."""

    __slots__ = ("_encoded", "events", "version")

    def __init__(self, version: int, events: Sequence[Event], encoded: bytes | None = None) -> None:
        self.version = version
        self.events = events
        self._encoded = encoded

    @property
    def encoded(self) -> bytes:
        """The events as a JSON array."""
        if self._encoded is None:
            self._encoded = encode_events(self.events)
        return self._encoded


class Tail:
    """The commits after `begins_after`."""

    def __init__(self, version: int) -> None:
        """Begin with nothing, at this version of the log."""
        self.begins_after = version
        self._entries: deque[Entry] = deque()
        self._events = 0

    def add(self, version: int, events: Sequence[Event], encoded: bytes | None = None) -> None:
        """The next commit, and its bytes where they are made already."""
        self._entries.append(Entry(version, events, encoded))
        self._events += len(events)
        while len(self._entries) > COMMITS_MAX or (
            self._events > EVENTS_MAX and len(self._entries) > 1
        ):
            oldest = self._entries.popleft()
            self._events -= len(oldest.events)
            self.begins_after = oldest.version

    def after(self, version: int, max_bytes: int) -> list[Entry] | None:
        """The commits after a version, at least one if there are any; None where some are not here any more."""
        if version < self.begins_after:
            return None
        found: list[Entry] = []
        size = 0
        for entry in self._entries:
            if entry.version <= version:
                continue
            size += len(entry.encoded)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as they go over the wire."""
    return encode_listed([to_json(event) for event in events])


def encode_listed(listed: Sequence[Mapping[str, Any]]) -> bytes:
    """The same, of events that are JSON objects already."""
    return json.dumps(listed, separators=(",", ":")).encode()


def decode_events(data: bytes | bytearray | memoryview) -> list[Event]:
    """Events as they came over the wire; ValueError where they cannot be understood."""
    listed = json.loads(bytes(data))
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError("a commit is a list of events")
    return [from_json(each) for each in listed]
