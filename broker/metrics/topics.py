"""Pure: the counters that each topic has, and their samples.

- Code that counts holds its topic's counters: counting is an addition.
- A topic's samples go with its last partition here, as Kafka's do. What was counted of it stays in the broker's totals:
  these are the sums over the topics of which it has, or once had, a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar

from broker.metrics.names import Metric, MetricSample

# A class of whole numbers that is made without arguments.
Counters = TypeVar("Counters")


class PerTopic(Generic[Counters]):
    """Counters by topic; `metrics` names the attribute that each metric shows."""

    def __init__(self, make: type[Counters], metrics: Mapping[str, Metric]) -> None:
        self._make = make
        self._metrics = metrics
        self._topics: dict[str, Counters] = {}
        self._gone = make()

    def of(self, topic: str) -> Counters:
        """The counters of a topic."""
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = self._make()
        return counters

    @property
    def of_none(self) -> Counters:
        """What belongs to no topic in particular."""
        return self._gone

    def keep(self, topics: Collection[str]) -> None:
        """Forgets all topics but these; what was counted of them stays in the totals."""
        for topic in [each for each in self._topics if each not in topics]:
            counters = self._topics.pop(topic)
            for name in self._metrics:
                setattr(self._gone, name, _value(self._gone, name) + _value(counters, name))

    def samples(self) -> Iterator[MetricSample]:
        """Totals and topics."""
        topics = sorted(self._topics.items())
        for name, metric in self._metrics.items():
            values = [(topic, _value(counters, name)) for topic, counters in topics]
            yield metric, (), _value(self._gone, name) + sum(value for _, value in values)
            if metric.labels:
                for topic, value in values:
                    yield metric, (topic,), value


def _value(counters: Any, name: str) -> int:
    value: int = getattr(counters, name)
    return value
