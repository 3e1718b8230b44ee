"""Pure: the share sessions of members with this broker: which partitions a member fetches, and its request's number.

A session begins with epoch 0, which replaces an older one of the member, and ends with -1 or with the connection on
which it began. There is room for so many; without room the one that is longest unused goes, if its member has not asked
for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import PartitionId

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
EVICTABLE_AFTER_MS = 120_000


class ShareSessionKey(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class ShareSession:
    """The partitions that a member fetches from this broker, in their order, and the epoch of its next request."""

    def __init__(self, key: ShareSessionKey, connection: object, now_ms: int) -> None:
        """`connection` is that of the first request."""
        self.key = key
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[PartitionId, None] = {}
        self.used_ms = now_ms

    def rotated(self) -> list[PartitionId]:
        """The partitions, beginning with another one for each request."""
        partitions = list(self.partitions)
        turn = self.epoch % len(partitions) if partitions else 0
        return partitions[turn:] + partitions[:turn]


class ShareSessionCache:
    """All share sessions of this broker, the longest unused first."""

    def __init__(self) -> None:
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        # By the identity of their connection, which they keep alive.
        self._begun_on: dict[int, set[ShareSessionKey]] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(tuple(self._sessions.values()))

    def get(self, key: ShareSessionKey) -> ShareSession:
        """The session of a member; raises SHARE_SESSION_NOT_FOUND."""
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def has_members(self, group_id: str) -> bool:
        """Whether a member of the group has a session here."""
        return any(key.group_id == group_id for key in self._sessions)

    def open(
        self, key: ShareSessionKey, *, connection: object, now_ms: int, limit: int
    ) -> tuple[ShareSession, ShareSession | None]:
        """A new session, and the one that was evicted for it; raises SHARE_SESSION_LIMIT_REACHED."""
        self.close(key)
        evicted = None
        if len(self._sessions) >= limit:
            evicted = next(iter(self._sessions.values()))
            if now_ms - evicted.used_ms < EVICTABLE_AFTER_MS:
                raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            self.close(evicted.key)
            self.evictions += 1
        session = self._sessions[key] = ShareSession(key, connection, now_ms)
        self._begun_on.setdefault(id(connection), set()).add(key)
        return session, evicted

    def use(self, key: ShareSessionKey, epoch: int, *, now_ms: int) -> ShareSession:
        """The session of a later request; raises INVALID_SHARE_SESSION_EPOCH if that is not the next one."""
        session = self.get(key)
        if epoch == FINAL_EPOCH:
            return session
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_ms = now_ms
        self._sessions[key] = self._sessions.pop(key)
        return session

    def close(self, key: ShareSessionKey) -> ShareSession | None:
        """Forget a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            begun = self._begun_on[id(session.connection)]
            begun.remove(key)
            if not begun:
                del self._begun_on[id(session.connection)]
        return session

    def begun_on(self, connection: object) -> list[ShareSessionKey]:
        """The sessions that began on a connection."""
        return list(self._begun_on.get(id(connection), ()))


def update(
    session: ShareSession, added: Iterable[PartitionId], forgotten: Iterable[PartitionId]
) -> None:
    """Change the session's partitions as a request says."""
    session.partitions.update(dict.fromkeys(added))
    for each in forgotten:
        session.partitions.pop(each, None)
