"""Shell: the fetchers of this broker: which of them follows which partition, and their metrics.

- Each leader has num.replica.fetchers fetchers here, each with one request in flight for all of its partitions. Kafka's
  hash of a partition's name chooses its fetcher.
- Changes come in batches: partitions are removed first, then added.
- A fetcher without partitions ends. A failed one is tried again when metadata name its partition.
- Once there is a tiered partition, leaders are asked for their tiered offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.java_hash import java_hash
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetcher import Fetcher
from broker.replica.fetcher.tiered_offsets import TieredOffsets
from broker.replica.follower.partition import FollowerPartition
from kafka_ds.protocol.topic_partition import TopicPartition

_WORD = 1 << 32
_SIGN = 1 << 31


def fetcher_id_of(partition: TopicPartition, fetchers: int) -> int:
    """Kafka's: |31 * topic.hashCode + partition| modulo the number of fetchers, in Java's 32 bits."""
    value = (31 * java_hash(partition.topic) + partition.partition) % _WORD
    signed = value - _WORD if value & _SIGN else value
    return (0 if signed == -_SIGN else abs(signed)) % fetchers


class Fetchers:
    """All fetchers of a broker."""

    def __init__(self, context: FetcherContext) -> None:
        self.context = context
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._homes: dict[FollowerPartition, Fetcher] = {}
        self._failed: set[TopicPartition] = set()
        self._is_stopped = False
        self._spread = context.settings.num_replica_fetchers
        self._tiered_offsets = TieredOffsets(context, lambda: tuple(self._homes))

    def update(
        self, *, remove: Iterable[FollowerPartition] = (), add: Iterable[FollowerPartition] = ()
    ) -> None:
        """Stop following some partitions and start following others, each from the leader that its follower names."""
        for partition in remove:
            self._remove(partition)
        if self._is_stopped:
            return
        new: dict[tuple[int, int], list[FollowerPartition]] = {}
        for partition in add:
            self._remove(partition)
            if partition.is_lost:
                continue  # Later metadata came first.
            fetcher_id = fetcher_id_of(partition.key, self._spread)
            new.setdefault((partition.follower.leader, fetcher_id), []).append(partition)
        for key, partitions in new.items():
            fetcher = self._fetchers.get(key)
            if fetcher is None:
                fetcher = self._fetchers[key] = Fetcher(*key, self.context, self._failed)
                fetcher.start()
            for partition in partitions:
                self._homes[partition] = fetcher
                self.configured(partition)
            fetcher.add(partitions)
        self._end_idle()

    def configure(self) -> None:
        """The broker's settings may have changed: partitions are spread over the new number of fetchers."""
        if self._spread != self.context.settings.num_replica_fetchers:
            self._spread = self.context.settings.num_replica_fetchers
            self.update(add=tuple(self._homes))

    def configured(self, partition: FollowerPartition) -> None:
        """The topic's settings may have changed."""
        if partition.log.config.remote_storage_enable:
            self._tiered_offsets.start()

    def _remove(self, partition: FollowerPartition) -> None:
        self._failed.discard(partition.key)
        fetcher = self._homes.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def _end_idle(self) -> None:
        used = set(self._homes.values())
        for key, fetcher in tuple(self._fetchers.items()):
            if fetcher not in used:
                del self._fetchers[key]
                fetcher.stop()

    def wake(self, broker_id: int) -> None:
        """A broker has registered: it may be reachable again, or elsewhere."""
        for (source, _), fetcher in self._fetchers.items():
            if source == broker_id:
                fetcher.wake()

    def stop(self) -> None:
        """Follow nothing more."""
        self._is_stopped = True
        fetchers, self._fetchers = tuple(self._fetchers.values()), {}
        self._homes.clear()
        self._tiered_offsets.stop()
        for fetcher in fetchers:
            fetcher.stop()

    def __iter__(self) -> Iterator[Fetcher]:
        return iter(self._fetchers.values())

    def names(self) -> dict[FollowerPartition, str]:
        """The fetcher of each partition, by name."""
        return {partition: fetcher.name for partition, fetcher in self._homes.items()}

    # -- metrics ------------------------------------------------------------------------------

    @property
    def failed_partitions(self) -> int:
        """How many are not fetched until their metadata change."""
        return len(self._failed)
