"""Shell: a plan's requests to brokers: connected when first needed, and retried as the options say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from kafka_ds.client.cluster import Cluster, OffsetAnswer
from kafka_ds.errors import AuthenticationRefused, ClientError, ConnectionRefused, NoSuchHost
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.options.options import Options

LOGGER = logging.getLogger("kafka_ds.source")
T = TypeVar("T")


class Brokers:
    """Those of the options; not for use by several threads at once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster: Cluster | None = None

    def close(self) -> None:
        """End the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    @property
    def cluster(self) -> Cluster:
        """The brokers, connected when first needed."""
        if self._cluster is None:
            self._cluster = Cluster(self._options.client)
        return self._cluster

    def offsets(
        self, questions: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, int]:
        """Offsets for timestamps (and -1, -2, -4), tried as often as ``fetchOffset.numRetries`` says."""
        answers = self.answers(questions, committed=committed)
        return {partition: answer.offset for partition, answer in answers.items()}

    def answers(
        self, questions: Mapping[TopicPartition, int], *, committed: bool
    ) -> dict[TopicPartition, OffsetAnswer]:
        """The same, with the leader epochs of what was found."""
        if not questions:
            return {}
        return self.retried(lambda: self.cluster.offsets(questions, read_committed=committed))

    def retried(self, read: Callable[[], T]) -> T:
        """The answer, tried as often as ``fetchOffset.numRetries`` says where that may help."""
        for attempt in range(self._options.fetch_offset_retries + 1):
            try:
                return read()
            except (AuthenticationRefused, ConnectionRefused, NoSuchHost):
                raise
            except (ClientError, KafkaError) as problem:
                if attempt == self._options.fetch_offset_retries:
                    raise
                LOGGER.warning(
                    "Failed to read offsets from the brokers (attempt %d): %s", attempt + 1, problem
                )
                self.close()
                time.sleep(self._options.fetch_offset_retry_interval_ms / 1_000)
        raise AssertionError("the last attempt raises")
