"""A broker's part in the cluster's metadata, without the broker: what tests of log and driver share."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.controller.controller import Controller, NewTopic, TopicResult
from broker.controller.metadata_driver import MetadataDriver
from broker.membership.member import decide_claim
from broker.metadata.events import Endpoint, Event
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.log import DeltaLog, LogClock
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.system import new_uuid
from kafka_ds.topic.names import CLUSTER_METADATA
from tests.fakes.cluster import identity_of
from tests.fakes.settings import controller_defaults

ENDPOINT = Endpoint(listener="PLAINTEXT", host="here", port=9092)


def take_any(_: Mapping[str, str]) -> None:
    """Topics without settings need no check."""


def new_controller(image: MetadataImage) -> Controller:
    return Controller(
        image,
        defaults=controller_defaults(),
        new_uuid=new_uuid,
        check_configs=take_any,
        session_timeout_ms=9_000,
    )


class Broker:
    """A broker's part in the cluster, without the broker."""

    def __init__(
        self,
        folder: Path,
        *,
        node_id: int = 1,
        store: Any = None,
        clock: LogClock | None = None,
        **told: Any,
    ) -> None:
        self.node_id = node_id
        store = store or LocalStore(str(folder))
        self.log = MetadataLog(store, log=DeltaLog(store, CLUSTER_METADATA, clock=clock))
        self.image = self.log.load()
        self.driver = MetadataDriver(
            self.log,
            self.image,
            node_id=node_id,
            controller=new_controller(self.image.copy()),
            **told,
        )

    async def start(
        self,
        cluster_id: str = "c",
        previous: int = -1,
        dead: int | None = None,
        judged: int | None = None,
    ) -> bool:
        """Claim; `judged` is the epoch that is meant to end, by default the last that is known."""
        identity = identity_of(
            self.node_id,
            cluster_id=cluster_id,
            incarnation_id=new_uuid(),
            endpoints=(ENDPOINT,),
            previous_broker_epoch=previous,
        )
        return await self.driver.claim(
            lambda claiming: decide_claim(claiming, identity, dead),
            controller_epoch=self.image.controller_epoch if judged is None else judged,
        )

    async def publish_to(self, publisher: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        """Publish every commit from now on."""
        await self.driver.start_publishing(lambda: asyncio.sleep(0), publisher)

    async def allocate_producer_ids(self) -> range:
        return await self.driver.decide(lambda c: c.allocate_producer_ids(self.node_id))

    async def create(self, *names: str) -> list[TopicResult]:
        return await self.driver.create_topics([NewTopic(name=name) for name in names])


def versions(folder: Path) -> list[Path]:
    return sorted((folder / CLUSTER_METADATA / "_delta_log").glob("*.json"))


def events_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
    events: list[dict[str, Any]] = info["kafkaDs"].get("events", [])
    return events


async def stop(*brokers: Broker) -> None:
    for broker in brokers:
        await broker.driver.stop()
