"""What the cluster has decided, read from the lake and not from a broker, which might be behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.metadata.events import (
    BrokerUnregistered,
    ControllerChange,
    Event,
    FenceBroker,
    PartitionChanged,
    RegisterBroker,
    UnfenceBroker,
)
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog, replay_commit
from kafka_ds.delta.log import DeltaLog
from kafka_ds.topic.names import CLUSTER_METADATA
from tests.fakes.clock import ManualClock


class Truth:
    """Reads the cluster's metadata out of the store, each commit once."""

    def __init__(self, store: Any, log: Callable[[str], None]) -> None:
        """`log` is called with every decision when it is first seen here."""
        self._tell = log
        self._log = MetadataLog(store, log=DeltaLog(store, CLUSTER_METADATA, clock=ManualClock()))
        self._image = MetadataImage()

    def image(self) -> MetadataImage:
        """The cluster's metadata at this moment."""
        for version, events in self._log.read_after(self._image.version):
            replay_commit(self._image, version, events)
            for line in _lines(events):
                self._tell(f"version {version}: {line}")
        return self._image


def _lines(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        match event:
            case PartitionChanged(registration=state):
                yield (
                    f"{event.topic}-{event.partition} led by {state.leader} in epoch "
                    f"{state.leader_epoch} (partition epoch {state.partition_epoch}), isr {state.isr}, "
                    f"elr {state.elr}, last known {state.last_known_elr}, "
                    f"recovering {state.leader_recovery_state}"
                )
            case RegisterBroker():
                yield f"registered {event.broker_id}, epoch before {event.previous_broker_epoch}"
            case FenceBroker() | UnfenceBroker() | BrokerUnregistered():
                yield f"{type(event).__name__} {event.broker_id}"
            case ControllerChange():
                yield f"controller {event.controller_id} epoch {event.controller_epoch}"
            case _:
                yield type(event).__name__
