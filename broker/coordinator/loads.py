"""Pure: how long coordinators took to read their partitions, and in what state they are, under Kafka's names.

It keeps the times of Kafka's window (30 s) and, as there, has no maximum or mean when nothing was read in it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from enum import Enum

from broker.metrics.names import Metric, MetricSample, attribute

WINDOW_MS = 30_000
LOADS_MAX = 10_000


class CoordinatorState(Enum):
    """How far a partition's coordinator is."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Loads:
    """How long recent loads have taken."""

    def __init__(self) -> None:
        self._durations: deque[tuple[int, int]] = deque(maxlen=LOADS_MAX)

    def loaded(self, took_ms: int, now_ms: int) -> None:
        """A partition was read; `now_ms` is the monotonic clock's."""
        self._durations.append((now_ms, took_ms))

    def recent(self, now_ms: int) -> list[int]:
        """How long each took that ended within the window, in milliseconds."""
        while self._durations and now_ms - self._durations[0][0] > WINDOW_MS:
            self._durations.popleft()
        return [took_ms for _, took_ms in self._durations]


class LoadMetrics:
    """The metrics of loading of one kind of coordinator."""

    def __init__(self, group: str, what: str, *, states_are_ours: bool) -> None:
        """`group` is the MBean's type; `what` is coordinated."""
        self._longest = attribute(
            group, "partition-load-time-max", f"The longest load of {what} in 30 s, in ms."
        )
        self._mean = attribute(
            group, "partition-load-time-avg", f"How long loads of {what} took in 30 s, in ms."
        )
        self._partitions: Metric = attribute(
            group,
            "num-partitions",
            f"Partitions of {what} that are led here, by state.",
            "state",
            ours=states_are_ours,
        )

    def samples(
        self, loads: Loads, states: Iterable[CoordinatorState], now_ms: int
    ) -> Iterator[MetricSample]:
        """The metrics at this time of the monotonic clock."""
        recent = loads.recent(now_ms)
        if recent:
            yield self._longest, (), max(recent)
            yield self._mean, (), sum(recent) / len(recent)
        counts = Counter(states)
        for state in (CoordinatorState.LOADING, CoordinatorState.ACTIVE, CoordinatorState.FAILED):
            yield self._partitions, (state.value,), counts[state]
