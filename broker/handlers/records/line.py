"""Shell: the partitions of one Fetch request, in the order in which they are served, and what was found of each.

Rules of this file:
- The order is that of the session's line, or of a request without one. What joins later (it has rested when the fetch
  came) gets its place in it before anything is looked at again, or answered.
- One that joins counts as looked at when the fetch came: there was nothing to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import chain

from broker.handlers.records.found import Found, Replica, nothing
from broker.replica.leader.hosted import HostedPartition
from broker.replica.serving.fetch_sessions import FetchContext
from broker.replica.serving.resting import CachedPartition
from kafka_ds.wire.messages.data import CONSUMER, FetchPartition, FetchTopic

Look = Callable[[FetchTopic, FetchPartition], Found]


class Line:
    """What was found for one request."""

    __slots__ = ("_found", "_joined", "wants")

    def __init__(self, wants: FetchContext) -> None:
        self.wants = wants
        # By the topics of `wants`.
        self._found: list[list[Found]] = []
        self._joined: dict[Replica, tuple[CachedPartition, Found]] = {}

    def find(self, look: Look) -> None:
        """Look at all of them."""
        self._take_in()
        self._found = [
            [look(topic, wanted) for wanted in topic.partitions] for topic in self.wants.topics
        ]

    def find_again(self, look: Look, advanced: Container[Replica]) -> None:
        """Look at these again, and at all where something was found."""
        self._take_in()
        for topic, founds in self.topics():
            for index, found in enumerate(founds):
                if found.partition in advanced or not found.is_settled:
                    founds[index] = look(topic, found.wanted)

    def join(self, cached: CachedPartition, partition: HostedPartition) -> None:
        """This one has rested until now."""
        data = nothing(cached.wanted.partition)
        data.high_watermark = cached.high_watermark
        data.log_start_offset = cached.log_start_offset
        found = Found(cached.wanted, data)
        found.partition = partition
        self._joined.setdefault(partition, (cached, found))

    def _take_in(self) -> None:
        """Give those that have joined their places."""
        session, wants = self.wants.session, self.wants
        if not self._joined or session is None:
            return
        looked_at = (
            pair
            for group, founds in zip(wants.groups, self._found, strict=True)
            for pair in zip(group.cached, founds, strict=True)
        )
        found = dict(chain(looked_at, self._joined.values()))
        groups = session.in_line(found)
        self.wants = wants._replace(topics=[group.topic for group in groups], groups=groups)
        self._found = [[found[cached] for cached in group.cached] for group in groups]
        self._joined.clear()

    def topics(self) -> Iterator[tuple[FetchTopic, list[Found]]]:
        """All that is to be answered, by topic."""
        return zip(self.wants.topics, self._found, strict=True)

    def __iter__(self) -> Iterator[Found]:
        return chain.from_iterable(self._found)

    def of(self, partition: Replica) -> Sequence[Found]:
        """What was found of one partition, which a request may name twice."""
        joined = self._joined.get(partition)
        if joined is not None:
            return (joined[1],)
        return [found for found in self if found.partition is partition]

    def at_rest(self, broker_epoch: int) -> list[tuple[CachedPartition, HostedPartition]]:
        """Those of a session that have nothing to tell until something happens to them.

        `broker_epoch` is the one in which a follower asks.
        """
        session = self.wants.session
        if session is None:
            return []
        replica_id, heard_ms = session.resting.replica_id, session.resting.last_fetch.ms
        return [
            (cached, partition)
            for group, founds in zip(self.wants.groups, self._found, strict=True)
            for cached, found in zip(group.cached, founds, strict=True)
            if (partition := found.at_rest) is not None
            and (
                replica_id <= CONSUMER
                or partition.leader.may_rest(
                    replica_id,
                    fetch_offset=cached.wanted.fetch_offset,
                    log_start_offset=cached.wanted.log_start_offset,
                    broker_epoch=broker_epoch,
                    heard_ms=heard_ms,
                )
            )
        ]
