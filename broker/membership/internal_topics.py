"""Shell: a coordinator's internal topic, created on first use.

- Such a topic has no table: only coordinators read it. It is compacted unless it says otherwise. The topic's number of
  partitions decides where a key is, not the setting. Requests that come while it is being created wait for that one
  creation.
- A replication factor set by the user is kept, as in Kafka: with fewer brokers the topic is not created yet, and
  clients ask again. The default is 3, or the number of brokers that ever registered if that is less, so that one broker
  works without any setting.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from broker.controller.controller import NewTopic, TopicResult
from broker.membership.requests import ControllerRequests
from broker.metadata.image import MetadataImage
from kafka_ds.process.amounts import counted
from kafka_ds.protocol.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

# Of each of them, where its own say nothing else.
CONFIGS = (
    ("cleanup.policy", "compact"),
    ("compression.type", "producer"),
    ("remote.storage.enable", "false"),
)


class InternalTopic:
    """One internal topic of the cluster."""

    def __init__(
        self,
        topic: NewTopic,
        *,
        is_factor_set: bool,
        image: MetadataImage,
        controller: ControllerRequests,
    ) -> None:
        """`image` is the published one; `is_factor_set`: the replication factor is not Kafka's default."""
        self.name = topic.name
        self._topic = topic
        self._is_factor_set = is_factor_set
        self._image = image
        self._controller = controller
        self._creating: asyncio.Task[None] | None = None

    async def ensure(self) -> None:
        """Create the topic, unless it exists; raises COORDINATOR_NOT_AVAILABLE if that fails."""
        if self.name in self._image.topics:
            return
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create())
        await asyncio.shield(self._creating)

    def stop(self) -> None:
        """Stop creating it."""
        if self._creating is not None:
            self._creating.cancel()

    async def _create(self) -> None:
        factor = self._topic.replication_factor
        if not self._is_factor_set and len(self._image.brokers) < factor:
            factor = max(len(self._image.brokers), 1)
            # A single broker is somebody's first hour; fewer copies than wanted among several are a risk.
            _LOGGER.log(
                logging.INFO if factor == 1 else logging.WARNING,
                "creating %s with replication factor %d, not %d: the cluster has %s",
                self.name,
                factor,
                self._topic.replication_factor,
                counted(factor, "broker"),
            )
        configs = tuple({**dict(CONFIGS), **dict(self._topic.configs)}.items())
        wanted = replace(self._topic, replication_factor=factor, configs=configs)
        try:
            (result,) = await self._controller.create_topics([wanted])
        except KafkaError as error:
            result = TopicResult(name=self.name, error=error.code, message=error.message)
        finally:
            self._creating = None
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            reason = result.message or result.error.name
            _LOGGER.error("%s cannot be created: %s", self.name, reason)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, result.message)
