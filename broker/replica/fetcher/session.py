"""Pure: a follower's side of an incremental fetch session (KIP-227).

The first request names every partition; later ones name the changes. The epoch goes up by one with each request, and
begins with 1 again after 2^31 - 1. After an unexpected answer (an error for the whole, a partition that was not
requested, none at all) a full request opens a new session. With session 0 each request is full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from broker.replica.session_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.protocol.topic_partition import PartitionId

# A partition in the session: its topic's id and its number.


class SessionRequest(NamedTuple):
    """The changes to the session that a request carries."""

    session_id: int
    session_epoch: int
    to_send: Mapping[PartitionId, FetchPartition]
    to_forget: Collection[PartitionId]


class FetchSessionClient:
    """One session with one leader; `request` and then `answered` or `failed`, in turns."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._known: dict[PartitionId, FetchPartition] = {}

    def request(self, wanted: Mapping[PartitionId, FetchPartition]) -> SessionRequest:
        """The request after which the session holds exactly the wanted partitions."""
        if self.epoch == INITIAL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(self._session_id, INITIAL_EPOCH, self._known, ())
        known = self._known
        to_send = {
            key: partition
            for key, partition in wanted.items()
            # Most are the same object as last time: nothing has changed.
            if (before := known.get(key)) is not partition and before != partition
        }
        to_forget = [key for key in known if key not in wanted]
        for key in to_forget:
            del known[key]
        known.update(to_send)
        return SessionRequest(self._session_id, self.epoch, to_send, to_forget)

    def answered(self, error_code: int, session_id: int, answered: Collection[PartitionId]) -> bool:
        """Process the session's part of an answer; returns whether the answer may be used."""
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            self.epoch = INITIAL_EPOCH
            return False
        if self.epoch == INITIAL_EPOCH:
            # A full request is answered in full.
            if set(answered) != self._known.keys():
                self._session_id = NO_SESSION
                return False
        elif not all(key in self._known for key in answered):
            self.epoch = INITIAL_EPOCH
            return False
        if session_id == NO_SESSION:
            self._session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        else:
            self._session_id = session_id
            self.epoch = next_epoch(self.epoch)
        return True

    def failed(self) -> None:
        """The leader may or may not have taken the request: the next one is full."""
        self.epoch = INITIAL_EPOCH
