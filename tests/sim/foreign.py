"""Runs in which other engines write to the tables, too: what they erase is gone, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from kafka_ds.topic import recovery
from tests.sim.clients import History, Partition, Promise
from tests.sim.engines import Engine
from tests.sim.scenario import QUIET_SECONDS_MAX, TOPIC
from tests.sim.tier_scenario import TierScenario, rows_in


class ForeignScenario(TierScenario):
    """Consumers get the table's rows and what the local log has beyond; only what an engine took out may be missing."""

    def __init__(self, *args: Any, engine: Callable[..., Engine] = Engine, **named: Any) -> None:
        super().__init__(*args, **named)
        world = self.world
        self.engine = engine(self._lake, self.tables, world.random, world.log, topic=TOPIC)
        self._read_from: dict[Partition, int] = {}

    def _producers(self) -> list[asyncio.Task[None]]:
        process, _ = self._client()
        work = self.engine.work(lambda: self._is_over)
        return [*super()._producers(), self._spawn(work, process)]

    async def _keep_what_is_left(self) -> None:
        await super()._keep_what_is_left()
        for partition in self.partitions:
            await self.world.until(
                lambda partition=partition: self._is_copied(partition),
                f"{partition} is copied, now that nothing is in the way",
                QUIET_SECONDS_MAX,
            )
            await self.world.until(
                lambda partition=partition: not self._lost(partition),
                f"lost files of {partition} are there again",
                QUIET_SECONDS_MAX,
            )
            log = self._leaders_log(partition)
            assert log is not None
            self._read_from[partition] = log.local_log_start_offset

    async def _in_sync(self) -> None:
        """Where another engine's checkpoint came first, nobody knew what a RESTORE took until a worker has noted it."""
        await super()._in_sync()
        if TOPIC in self.tables.tables:
            self.engine.decide()

    def _listen(self, patch: pytest.MonkeyPatch) -> None:
        super()._listen(patch)
        patch.setattr(recovery, "open_store", lambda uri: self._lake)

    def _check_local_logs(self) -> None:
        """Nor has any log dropped what is in no file but one that the store has lost."""
        super()._check_local_logs()
        for partition in self.partitions:
            lost = self._not_given_up(partition, self.tables.never_held(*partition))
            for host in self.world.up() if lost else ():
                log = host.node.log_manager.get(partition) if host.node is not None else None
                assert log is None or log.local_log_start_offset <= min(lost), (
                    f"{host.name}: {partition} begins at {log.local_log_start_offset}, and {lost} are lost"
                )

    def _lost(self, partition: Partition) -> list[int]:
        """Where files begin that the table names and the store does not have."""
        return self._not_given_up(partition, self.tables.missing(*partition))

    def _not_given_up(self, partition: Partition, spans: list[tuple[int, int]]) -> list[int]:
        """Where these begin, as far as retention and operators have left them."""
        declared = self.bounds.declared(partition)
        return [max(first, declared) for first, last in spans if last >= declared]

    def _kept_history(self) -> History:
        """Without the promises for rows that are taken out: whether the local log still has them says nothing."""
        found = super()._kept_history()
        gone = {
            row.content.value
            for partition in self.partitions
            for row in self.tables.taken(*partition).values()
        }
        promises = [part for each in found.promises for part in _without(each, gone)]
        return replace(found, promises=promises)

    def _check_rows(self, partition: Partition, read: dict[int, bytes]) -> None:
        """Consumers get exactly the table's rows, and of what was taken out only what the local log still has."""
        start, end = self.tables.start(*partition), self.tables.end(*partition)
        rows, taken = dict(self.tables.rows(*partition)), self.tables.taken(*partition)
        surplus = [at for at in read if start <= at <= end and at not in rows | taken][:5]
        assert not surplus, f"{partition}: committed, and never in the table: {surplus}"
        erased = [at for at in read if at in taken and at < self._read_from[partition]][:5]
        assert not erased, f"{partition}: read from the table, which does not have it: {erased}"
        wrong = [
            at for at, row in rows.items() if at >= start and read.get(at) != row.content.value
        ][:5]
        assert not wrong, f"{partition}: in the table, and not read: {wrong}"
        topic_id = self.bounds.topic_id(partition[0])
        for offset in range(start, end + 1):
            place = (topic_id, partition[1], offset)
            assert offset in rows or offset in taken or self.model.may_be_missing(place), (
                f"{place} is in no table"
            )

    def _check_with_the_library(self) -> None:
        """`deltalake` reads the same rows now; files of earlier versions may be gone by its own VACUUM."""
        for partition in self.partitions:
            if partition[0] in self.tables.tables:
                table = DeltaTable(self._lake.uri(f"topics/{partition[0]}"))
                assert table.version() == self.tables.tables[partition[0]].version
                assert rows_in(table, partition[1]) == self.tables.rows(*partition)


def _without(promise: Promise, gone: set[bytes | None]) -> Iterator[Promise]:
    """A promise for each record that is not gone."""
    if not gone.intersection(promise.values):
        yield promise
        return
    for i, value in enumerate(promise.values):
        if value not in gone:
            offset = promise.offset
            at = offset + i if offset is not None and offset >= 0 else offset
            yield replace(promise, values=[value], offset=at)
