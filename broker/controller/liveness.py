"""Pure: which brokers are alive, by the heartbeats that the active controller gets. None of this is in a log.

Times are of this controller's monotonic clock; a new controller gives every broker a fresh session (`begin`). A session
belongs to one broker epoch and ends `broker.session.timeout.ms` after the last heartbeat, or when the broker has
stopped; one that a decision ends is over when that is durable (`end_with_commit`), unless a heartbeat came meanwhile. A
broker may stop once every other active one knows the new leaders (`has_been_heard`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from broker.metadata.image import BrokerRegistration

UNKNOWN_VERSION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSession:
    """The state of one incarnation of a broker."""

    broker_epoch: int
    last_contact_ms: int
    # How far the broker has applied the metadata log.
    metadata_version: int = UNKNOWN_VERSION
    # The version of its controlled shutdown, once that is durable.
    shutdown_version: int = UNKNOWN_VERSION
    # Whether its end waits for a commit.
    is_ending: bool = False


class Sessions:
    """The sessions of all brokers with heartbeats."""

    def __init__(self, timeout_ms: int) -> None:
        """`timeout_ms` is `broker.session.timeout.ms`."""
        self.timeout_ms = timeout_ms
        self._by_broker: dict[int, BrokerSession] = {}

    def begin(self, brokers: Iterable[BrokerRegistration], version: int, now_ms: int) -> None:
        """A controller begins: every unfenced broker counts as heard from just now."""
        self._by_broker = {
            broker.broker_id: BrokerSession(
                broker_epoch=broker.broker_epoch,
                last_contact_ms=now_ms,
                shutdown_version=version if broker.in_controlled_shutdown else UNKNOWN_VERSION,
            )
            for broker in brokers
            if not broker.fenced
        }

    def begin_one(self, broker: BrokerRegistration, now_ms: int) -> None:
        """An unfenced broker without a known heartbeat counts as heard from just now."""
        session = BrokerSession(broker_epoch=broker.broker_epoch, last_contact_ms=now_ms)
        self._by_broker[broker.broker_id] = session

    def touch(
        self, broker_id: int, broker_epoch: int, *, metadata_version: int, now_ms: int
    ) -> None:
        """A heartbeat of this incarnation has come."""
        known = self._by_broker.get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            known = BrokerSession(broker_epoch=broker_epoch, last_contact_ms=now_ms)
        self._by_broker[broker_id] = replace(
            known,
            last_contact_ms=now_ms,
            metadata_version=metadata_version,
            is_ending=False,
        )

    def end(self, broker_id: int) -> None:
        """This broker has stopped, or its session has ended."""
        self._by_broker.pop(broker_id, None)

    def end_with_commit(self, broker_id: int) -> None:
        """The same, once that decision is durable."""
        known = self._by_broker.get(broker_id)
        if known is not None:
            self._by_broker[broker_id] = replace(known, is_ending=True)

    def committed(self, broker_id: int, broker_epoch: int) -> None:
        """The metadata log says that this incarnation is fenced or gone."""
        known = self._by_broker.get(broker_id)
        if known is not None and known.is_ending and known.broker_epoch == broker_epoch:
            self.end(broker_id)

    def has_session(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether this incarnation counts as alive: another one must wait for its end."""
        known = self._by_broker.get(broker_id)
        return known is not None and known.broker_epoch == broker_epoch

    def all(self) -> dict[int, BrokerSession]:
        """The state of each broker with a session."""
        return dict(self._by_broker)

    def expired(self, now_ms: int) -> list[int]:
        """The brokers whose sessions have ended."""
        return [
            broker_id
            for broker_id, session in self._by_broker.items()
            if now_ms - session.last_contact_ms >= self.timeout_ms
        ]

    def next_deadline_ms(self) -> int | None:
        """When the next session ends without a heartbeat."""
        last = min((each.last_contact_ms for each in self._by_broker.values()), default=None)
        return None if last is None else last + self.timeout_ms

    def shutdown_begins(self, broker_id: int, version: int) -> None:
        """The controlled shutdown of this broker is durable, and its leaders have moved."""
        known = self._by_broker.get(broker_id)
        if known is not None and known.shutdown_version == UNKNOWN_VERSION:
            self._by_broker[broker_id] = replace(known, shutdown_version=version)

    def has_been_heard(self, broker_id: int, others: Collection[int]) -> bool:
        """Whether the other active brokers know that this one is about to stop."""
        known = self._by_broker.get(broker_id)
        if known is None or known.shutdown_version == UNKNOWN_VERSION:
            return False
        sessions = [self._by_broker.get(other) for other in others]
        return all(
            session is not None and session.metadata_version >= known.shutdown_version
            for session in sessions
        )
