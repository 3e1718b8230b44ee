"""A topic changes between tiered, copying disabled, and no table at all (KIP-950), while leaders move."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.replica.leader.partition import LeaderPartition
from broker.replica.state_applier import ReplicaStateApplier
from kafka_ds.protocol.errors import ErrorCode
from tests.sim.clients import TROUBLE, Partition
from tests.sim.keeping import alter_topic
from tests.sim.operator import Operator
from tests.sim.scenario import QUIET_SECONDS_MAX, TOPIC
from tests.sim.tier_scenario import TierScenario

REST_SECONDS = (0.4, 2.5)
COPIED, KEPT, LEFT = "copied", "kept", "left"
SETTINGS: dict[str, dict[str, str | None]] = {
    COPIED: {
        "remote.storage.enable": "true",
        "remote.log.copy.disable": "false",
        "local.retention.bytes": "1",
    },
    KEPT: {
        "remote.storage.enable": "true",
        "remote.log.copy.disable": "true",
        "local.retention.bytes": "-2",
    },
    LEFT: {
        "remote.storage.enable": "false",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "true",
        "local.retention.bytes": "-2",
    },
}


class SwitchScenario(TierScenario):
    """A topic's kept records are there and its given-up records go, after any number of changes and of leaders."""

    def _listen(self, patch: Any) -> None:
        super()._listen(patch)
        update_tier = ReplicaStateApplier.update_tier

        def updated(applier: ReplicaStateApplier, partition: LeaderPartition) -> None:
            log = partition.log
            if log.config.has_table and not log.config.remote_storage_enable:
                self.bounds.gave_up(tuple(log.topic_partition), log.local_log_start_offset)
            update_tier(applier, partition)

        patch.setattr(ReplicaStateApplier, "update_tier", updated)

    def _producers(self) -> list[asyncio.Task[None]]:
        operator, process = self._operator()
        return [*super()._producers(), self._spawn(self._change_minds(operator), process)]

    async def _change_minds(self, operator: Operator) -> None:
        random = self.world.random
        self.state, self.switched = COPIED, 0
        while not self._is_over:
            await asyncio.sleep(random.uniform(*REST_SECONDS))
            self.state = random.choice([each for each in SETTINGS if each != self.state])
            await self._become(operator, self.state)
            self.switched += 1
            if random.random() < 0.5:
                try:
                    await operator.prefer()
                except TROUBLE:
                    continue

    async def _become(self, operator: Operator, state: str) -> None:
        while (code := await alter_topic(operator, TOPIC, SETTINGS[state])) is not ErrorCode.NONE:
            # A controller that is deposed does not know whether its last decision is in the log.
            is_unknown = code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert code is None or code.retriable or is_unknown, code
            await operator.pause()
        self.world.log(f"{TOPIC} is {state}")

    async def _keep_what_is_left(self) -> None:
        for partition in self.partitions:
            await self.world.until(
                lambda partition=partition: self._has_heard(partition),
                f"{partition} is {self.state}",
                QUIET_SECONDS_MAX,
            )
        await super()._keep_what_is_left()

    def _has_heard(self, partition: Partition) -> bool:
        log = self._leaders_log(partition)
        return log is not None and log.config.copies_to_lake is (self.state == COPIED)

    def _is_copied(self, partition: Partition) -> bool:
        return self.state != COPIED or super()._is_copied(partition)
