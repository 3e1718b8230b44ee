"""Shell: the topics' tables in the lake, as planning sees them.

One version of a table serves all partitions of its topic in a plan. A table of an earlier topic of the same name
(deleted, created again) counts as empty. A folder that holds no table of kafka-ds is an error that names it. Snapshots
are kept and brought up to date, since a stream plans every second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kafka_ds.client.cluster import Leader, Topic
from kafka_ds.delta.store.store import Store, UnsupportedStore
from kafka_ds.delta.store.uri import open_for_reading
from kafka_ds.errors import OptionError
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.options.options import AsOf
from kafka_ds.source.plan.scan_plan import LakeFile, LakeView
from kafka_ds.source.plan.table_scan import TableVersion

if TYPE_CHECKING:
    from kafka_ds.topic.index import FileEntry, PartitionFiles
    from kafka_ds.topic.snapshot import TopicSnapshot

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(milliseconds: int) -> str:
    """A time in UTC as messages spell it."""
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")


NOBODY = Leader(node_id=-1, epoch=-1)


class LakeTables:
    """The tables below a lake's address; none at all without one."""

    def __init__(self, uri: str | None, as_of: AsOf | None = None, *, fsspec: str = "") -> None:
        self._uri = uri
        self._as_of = as_of
        self._store: Store | None = None
        self._snapshots: dict[str, TopicSnapshot] = {}
        if uri is not None:
            try:
                self._store = open_for_reading(uri, fsspec)
            except UnsupportedStore as problem:
                raise OptionError(f"option 'lake': {problem}") from None

    @property
    def present(self) -> bool:
        """Whether there is a lake, and it can be seen from here."""
        if self._store is None:
            return False
        folder = self._store.local_path("")
        return folder is None or os.path.isdir(folder)

    def names(self) -> Iterable[str]:
        """The topics that have tables, deleted ones included; no table is opened."""
        from kafka_ds.topic.names import TOPICS

        assert self._store is not None
        return self._store.folders(TOPICS)

    def topics(self, wanted: Collection[str] | None) -> dict[str, Topic]:
        """The topics that have tables, as far as the tables know them."""
        found: dict[str, Topic] = {}
        for name in self.names():
            if wanted is not None and name not in wanted:
                continue
            snapshot = self._snapshot(name)
            topic_id = None if snapshot is None else snapshot.topic_id
            if snapshot is not None and topic_id is not None:
                partitions = snapshot.partitions()
                found[name] = Topic(
                    name=name,
                    topic_id=topic_id,
                    internal=False,
                    partitions=dict.fromkeys(partitions, NOBODY),
                )
        return found

    def views(self, topic: str, topic_id: bytes) -> dict[int, LakeView]:
        """What the newest version of the topic's table holds of each of its partitions."""
        snapshot = self._snapshot(topic)
        if snapshot is None or snapshot.topic_id is None:
            return {}
        if topic_id not in (NO_UUID, snapshot.topic_id):
            if self._as_of is not None:
                raise OptionError(
                    f"option '{self._as_of.option}': the table of {topic} was another topic's then, which was "
                    "deleted since; option 'lake' reads it without the brokers"
                )
            return {}
        found: dict[int, LakeView] = {}
        for partition in snapshot.partitions():
            last = snapshot.highest_offset_in_remote_storage(partition)
            if last is not None:
                found[partition] = LakeView(
                    version=snapshot.version,
                    start=snapshot.log_start(partition) or 0,
                    end=last + 1,
                    find=self._finder(snapshot.index.files(partition)),
                    missing=Intervals.of(
                        *((first, last + 1) for first, last in snapshot.missing(partition))
                    ),
                )
        return found

    def version(self, topic: str) -> TableVersion:
        """The version that `views` returned last, which is not looked for again."""
        from kafka_ds.topic.names import topic_table

        assert self._store is not None
        snapshot = self._snapshots[topic]
        # A file that the log gives no partition is in none that is read.
        quarantined = [snapshot.files[p] for p in snapshot.quarantined if p in snapshot.files]
        held: dict[int, tuple[int, int]] = {}
        undated = False
        for partition in snapshot.index.partitions():
            for each in snapshot.index.files(partition):
                start, end = held.get(partition, (each.min_offset, 0))
                held[partition] = min(start, each.min_offset), max(end, each.max_offset + 1)
                undated = undated or each.null_timestamps != 0
        return TableVersion(
            uri=self._store.local_path(topic_table(topic)) or self._store.uri(topic_table(topic)),
            version=snapshot.version,
            held=held,
            quarantined=tuple(
                sorted((e.partition, e.path.rpartition("/")[2]) for e in quarantined)
            ),
            undated=undated,
        )

    def _finder(self, files: PartitionFiles) -> Callable[[int, int], list[LakeFile]]:
        """Makes those of the files that a plan asks for: there may be tens of thousands."""
        return lambda start, end: [self._file(each) for each in files.find(start, end - 1)]

    def _file(self, entry: FileEntry) -> LakeFile:
        assert self._store is not None
        low, high = entry.min_timestamp_ms, entry.max_timestamp_ms
        # Rows without a date are beyond what the statistics bound.
        bounded = low is not None and high is not None and entry.null_timestamps == 0
        vector = entry.vector
        if vector is not None and vector.path:
            vector = replace(vector, path=self._address(vector.path))
        return LakeFile(
            path=self._address(entry.path),
            vector=vector,
            size_bytes=entry.size,
            first_offset=entry.min_offset,
            last_offset=entry.max_offset,
            min_timestamp_us=low * 1_000 if bounded and low is not None else None,
            # Statistics are cut to milliseconds: the largest may lie a little above.
            max_timestamp_us=high * 1_000 + 999 if bounded and high is not None else None,
        )

    def _address(self, path: str) -> str:
        assert self._store is not None
        return self._store.local_path(path) or self._store.uri(path)

    def _snapshot(self, topic: str) -> TopicSnapshot | None:
        from kafka_ds.delta.actions import CorruptLog
        from kafka_ds.delta.snapshot import NoSuchTable, NoSuchVersion
        from kafka_ds.delta.statistics import UnsupportedFile
        from kafka_ds.topic.files.parquet import UnreadableFile
        from kafka_ds.topic.snapshot import TopicSnapshot

        assert self._store is not None
        known = self._snapshots.get(topic)
        try:
            if known is None:
                version = self._wanted_version(topic)
                known = self._snapshots[topic] = TopicSnapshot.load(self._store, topic, version)
            elif self._as_of is None:
                known.refresh()
        except NoSuchTable:
            return None
        except NoSuchVersion as problem:
            assert self._as_of is not None
            raise OptionError(f"option '{self._as_of.option}': {problem}") from None
        except (CorruptLog, UnsupportedFile, UnreadableFile) as problem:
            self._snapshots.pop(topic, None)
            raise OptionError(f"option 'lake' ({self._uri}): {problem}") from None
        except KeyError:
            # A file without the column that every table of kafka-ds has.
            raise self._foreign(topic) from None
        if known.kind is None:
            raise self._foreign(topic)
        return known

    def _wanted_version(self, topic: str) -> int | None:
        """The requested version, None for the newest.

        Raises:
            OptionError: it does not exist, or cannot be built from the log any more.
        """
        if self._as_of is None:
            return None
        from kafka_ds.delta.history import history
        from kafka_ds.delta.log import DeltaLog
        from kafka_ds.topic.names import topic_table

        assert self._store is not None
        versions = history(DeltaLog(self._store, topic_table(topic)))
        if not versions:
            return None
        wanted = self._as_of.version
        if self._as_of.timestamp_ms is not None:
            at_ms = self._as_of.timestamp_ms
            wanted = max((v for v, then_ms in versions.items() if then_ms <= at_ms), default=-1)
        if wanted in versions:
            return wanted
        first, last = min(versions), max(versions)
        raise OptionError(
            f"option '{self._as_of.option}': the log of {self._store.uri(topic_table(topic))} reaches from version "
            f"{first} of {moment(versions[first])} to {last} of {moment(versions[last])}"
        )

    def _foreign(self, topic: str) -> OptionError:
        from kafka_ds.topic.names import topic_table

        assert self._store is not None
        where = self._store.uri(topic_table(topic))
        return OptionError(f"option 'lake' ({self._uri}): {where} is not a table of kafka-ds")
