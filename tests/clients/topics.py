"""Topics for tests, made through librdkafka's admin client."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic


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
    admin.create_topics([new])[topic].result(120)
