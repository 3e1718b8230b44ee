"""Shell: `__offsets`: the last checkpoint of partitions, groups and share groups of each broker, as a Delta table.

A broker's rows are one file, in a Delta partition of its own, and publishing replaces all of them in one commit; older
versions have the past. Readers decide between two brokers by the leader epoch: `present`. A broker removes its own rows
of a coordinator only when it covers that again, or when a broker of a higher leader epoch has. If others changed the
same rows meanwhile, the commit is made again.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ds.delta.actions import KIND_KEY, Action, add_action, remove_action
from kafka_ds.delta.commit import Conflict, PlainChange
from kafka_ds.delta.log import DeltaLog, ForeignTable, LogClock
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.delta.snapshot import NoSuchTable, TableSnapshot
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.table_writer import TableWriter
from kafka_ds.topic.file_rows import read_rows
from kafka_ds.topic.names import OFFSETS
from kafka_ds.topic.schemas import (
    OFFSETS_FILE_SCHEMA,
    OFFSETS_PARTITION_COLUMNS,
    OFFSETS_SCHEMA,
    system_table_properties,
)

OFFSETS_KIND = "offsets"
OPERATION = "PUBLISH OFFSETS"
PARTITION_KIND = "partition"
# Topics whose partitions' leaders are the coordinators of what the rows of other kinds say.
_OF_GROUPS, _OF_SHARES = "__consumer_offsets", "__share_group_state"
_COORDINATING = {"group": _OF_GROUPS, "offset": _OF_GROUPS, "share_state": _OF_SHARES}
TRIES_MAX = 5

OffsetsRow = dict[str, Any]
"""A row by its columns; times are milliseconds since 1970."""
_CoordinatorKey: TypeAlias = tuple[str, int]
"""The partition that a coordinator leads."""

_TIMES = ("event_time", "commit_time")
_BROKER = OFFSETS_PARTITION_COLUMNS[0]


class OffsetsTable:
    """The table of one lake, as one broker writes it and anybody reads it."""

    def __init__(self, store: Store, *, clock: LogClock | None = None) -> None:
        self._store = store
        self.log = DeltaLog(store, OFFSETS, clock=clock)
        self._table = TableWriter(self.log)
        self._snapshot = TableSnapshot(self.log)
        self._published: frozenset[_CoordinatorKey] | None = None
        """The coordinators whose rows this process published last."""

    def replace(self, broker_id: int, rows: Sequence[OffsetsRow]) -> int:
        """Replace the broker's rows; returns the version of the commit.

        Of a coordinator without a row among them (its log is being read, or another broker leads its partition that has
        published nothing yet) its former rows stay, until one of a higher leader epoch publishes it.

        Raises ForeignTable, CommitError, Conflict, OSError.
        """
        self._open()
        self._table.settle()
        for _ in range(TRIES_MAX):
            self._snapshot.refresh()
            mine = self._files_of(broker_id)
            written = [*rows, *self._kept(broker_id, mine, _coordinators_in(rows))]
            change = self._change(broker_id, written, mine)
            # If the answer is lost, the table may have either.
            self._published = None
            try:
                version = self._table.commit(
                    self._table.begin(change), read_version=self._snapshot.version
                )
            except Conflict:
                continue
            self._published = _coordinators_in(written)
            return version
        raise Conflict(f"{OFFSETS}: other writers keep changing the rows of broker {broker_id}")

    def _kept(
        self, broker_id: int, mine: Sequence[str], said: frozenset[_CoordinatorKey]
    ) -> list[OffsetsRow]:
        """What the broker published of other coordinators, as long as no other broker has published them since."""
        # Usually it is known that there are none. Another engine that rewrites the file does not change its rows.
        if self._published is not None and self._published <= said:
            return []
        before = self._rows_of(mine, broker_id)
        alone = {
            _place(row): row for row in before if _is_coordinating(row) and _place(row) not in said
        }
        others = (each for each in self._brokers() if each != broker_id) if alone else ()
        for other in others:
            for row in self._rows_of(self._files_of(other), other):
                known = alone.get(_place(row)) if _is_coordinating(row) else None
                if known is not None and _supersedes(row, known):
                    del alone[_place(row)]
        return [row for row in before if _coordinator_of(row) in alone]

    def read(self) -> list[OffsetsRow]:
        """All rows of all brokers; none if there is no table."""
        try:
            self._snapshot.refresh()
        except NoSuchTable:
            return []
        self._check()
        return [
            row
            for broker_id in self._brokers()
            for row in self._rows_of(self._files_of(broker_id), broker_id)
        ]

    def _open(self) -> None:
        self.log.create(
            schema_json=delta_schema_json(OFFSETS_SCHEMA),
            partition_columns=OFFSETS_PARTITION_COLUMNS,
            configuration={**system_table_properties(), KIND_KEY: OFFSETS_KIND},
        )
        if self._snapshot.version < 0:
            self._snapshot.read()
        self._check()

    def _check(self) -> None:
        if self._snapshot.kind != OFFSETS_KIND:
            raise ForeignTable(f"{self._store.uri(OFFSETS)} holds another table")

    def _brokers(self) -> list[int]:
        return sorted({_broker_of(each) for each in self._snapshot.files})

    def _files_of(self, broker_id: int) -> list[str]:
        return [each for each in self._snapshot.files if _broker_of(each) == broker_id]

    def _change(
        self, broker_id: int, rows: Sequence[OffsetsRow], replaced: Sequence[str]
    ) -> PlainChange:
        now_ms = self.log.clock.wall_ms()
        schema_json = delta_schema_json(OFFSETS_SCHEMA)
        values = {_BROKER: str(broker_id)}
        data = _encode(rows)
        name = f"{_BROKER}={broker_id}/{now_ms:015d}-{secrets.token_hex(8)}.parquet"
        self._store.put_durable(self.log.path(name), data)
        actions: list[Action] = [
            remove_action(
                path=self._snapshot.files[path].action_path,
                partition_values=values,
                size=self._snapshot.files[path].size,
                deleted_ms=now_ms,
            )
            for path in replaced
        ]
        actions.append(
            add_action(
                path=name,
                partition_values=values,
                size=len(data),
                modified_ms=now_ms,
                stats=f'{{"numRecords":{len(rows)}}}',
            )
        )

        def end_at_mine(version: int, others: Sequence[Action]) -> None:
            for action in others:
                changed = action.get("add") or action.get("remove")
                if changed and _broker_of(str(changed["path"])) == broker_id:
                    raise Conflict(f"version {version} changed the same rows", version=version)

        metadata = self._snapshot.metadata
        if metadata["schemaString"] != schema_json:
            # The table was made by an earlier release.
            actions.append({"metaData": {**metadata, "schemaString": schema_json}})
        info = {"brokerId": broker_id, "rows": len(rows)}
        return PlainChange(OPERATION, actions=actions, info=info, check=end_at_mine)

    def _rows_of(self, paths: Sequence[str], broker_id: int) -> list[OffsetsRow]:
        found: list[OffsetsRow] = []
        for path in paths:
            table = read_rows(self._store.read(path))
            names = [name for name in OFFSETS_FILE_SCHEMA.names if name in table.column_names]
            table = table.select(names)
            for name in set(names) & set(_TIMES):
                at = names.index(name)
                milliseconds = table.column(name).cast(pa.timestamp("ms", tz="UTC"), safe=False)
                table = table.set_column(at, name, milliseconds.cast(pa.int64()))
            found += [{**row, _BROKER: broker_id} for row in table.to_pylist()]
        return found


def present(rows: Iterable[OffsetsRow]) -> list[OffsetsRow]:
    """Of several brokers' rows about the same thing, those of the newest leader.

    A coordinator is the leader of its partition of `__consumer_offsets`, or of `__share_group_state`: only its present
    leader knows which groups there are. (A broker publishes its partitions and what they coordinate together.)
    """
    listed = list(rows)
    newest: dict[tuple[str, int], OffsetsRow] = {}
    for row in listed:
        if row["kind"] == PARTITION_KIND:
            key = (row["topic_id"], row["partition"])
            known = newest.get(key)
            if known is None or _age(known) < _age(row):
                newest[key] = row
    coordinators = {
        (_place(row), row["leader_epoch"], row[_BROKER])
        for row in newest.values()
        if _is_coordinating(row)
    }
    groups = [
        row
        for row in listed
        if row["kind"] != PARTITION_KIND
        and (_coordinator_of(row), row["coordinator_epoch"], row[_BROKER]) in coordinators
    ]
    return [*newest.values(), *groups]


def _age(row: Mapping[str, Any]) -> tuple[int, int]:
    return (row["leader_epoch"], row["event_time"])


def _is_coordinating(row: OffsetsRow) -> bool:
    """Whether a row is about a partition whose leader is a coordinator."""
    return row["kind"] == PARTITION_KIND and row["topic"] in _COORDINATING.values()


def _place(row: OffsetsRow) -> _CoordinatorKey:
    return row["topic"], row["partition"]


def _coordinators_in(rows: Iterable[OffsetsRow]) -> frozenset[_CoordinatorKey]:
    return frozenset(_place(row) for row in rows if _is_coordinating(row))


def _supersedes(row: OffsetsRow, known: OffsetsRow) -> bool:
    """Whether another broker's row of the same partition is of a later leader, or of a topic that was created again."""
    if row["topic_id"] != known["topic_id"]:
        return bool(row["event_time"] > known["event_time"])
    return bool(row["leader_epoch"] > known["leader_epoch"])


def _coordinator_of(row: OffsetsRow) -> _CoordinatorKey | None:
    """The coordinator that a row is of."""
    if row["kind"] == PARTITION_KIND:
        return _place(row) if _is_coordinating(row) else None
    return _COORDINATING[row["kind"]], row["coordinator_partition"]


def _broker_of(path: str) -> int:
    """Whose file this is; engines that rewrite it keep it in its folder."""
    for part in path.split("/"):
        name, mark, value = part.partition("=")
        if mark and name == _BROKER and value.isdigit():
            return int(value)
    return -1


def _encode(rows: Sequence[OffsetsRow]) -> bytes:
    plain = [{**row, **{name: _microseconds(row.get(name)) for name in _TIMES}} for row in rows]
    sink = io.BytesIO()
    table = pa.Table.from_pylist(plain, OFFSETS_FILE_SCHEMA)
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None or milliseconds < 0 else milliseconds * 1000
