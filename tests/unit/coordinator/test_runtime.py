"""A topic whose partitions' leaders are coordinators: one a lead, and nothing left of one that is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.cluster.internal_topics import InternalTopicSettings
from broker.coordinator.runtime import CoordinatorRuntime

SETTINGS = InternalTopicSettings(
    name="__x", num_partitions=2, replication_factor=1, segment_bytes=1 << 20
)


class Context:
    def __init__(self, partition: Any) -> None:
        self.partition = partition
        self.is_closed = False

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_nothing_is_kept_of_a_coordinator_whose_lead_is_over() -> None:
    led: dict[int, str] = {0: "the first lead", 1: "another partition"}
    topic: CoordinatorRuntime[Any] = CoordinatorRuntime(
        SETTINGS,
        partitions=SimpleNamespace(find=lambda _, index: led.get(index)),  # type: ignore[arg-type]
        image=SimpleNamespace(topics={"__x": SimpleNamespace(partitions=[0, 1])}),  # type: ignore[arg-type]
        create_topics=None,  # type: ignore[arg-type]
        begin=Context,  # type: ignore[arg-type]
    )
    topic.start()
    first, other = topic.begun()
    assert (first.partition, other.partition) == ("the first lead", "another partition")
    del led[0]
    first.close()
    topic.start()
    assert list(topic.begun()) == [other]
    led[0] = "the second lead"
    assert [context.partition for context in topic.led_here()] == [
        "the second lead",
        "another partition",
    ]
