"""Topics for tests, made through librdkafka's admin client."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S = 120


def create_topic(
    bootstrap: str,
    topic: str,
    settings: Mapping[str, str] | None = None,
    *,
    partitions: int = 1,
    replicas: int = 1,
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(
        topic, num_partitions=partitions, replication_factor=replicas, config=dict(settings or {})
    )
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            admin.create_topics([new])[topic].result(PATIENCE_S)
            return
        except KafkaException as failure:
            # The controller was replaced: nothing was created. Java's admin client tries again by itself.
            code = failure.args[0].code()
            if code != KafkaError.NOT_CONTROLLER or time.monotonic() > give_up_s:
                raise
        time.sleep(0.1)
