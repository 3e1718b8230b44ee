"""The state that a model of the cluster keeps besides the controller's: processes, disks, log ends."""

from __future__ import annotations

from typing import Any

from broker.metadata.image import MetadataImage

# A record: the leader epoch in which it was written, and its number.
Record = tuple[int, int]


class Replica:
    """One log, and under which leader it was last told to look like this."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.fetched_epoch = -1


class Partition:
    """What became of the records of one partition."""

    def __init__(self) -> None:
        self.replicas: dict[int, Replica] = {}
        self.committed: list[Record] = []
        self.written = 0

    def replica(self, broker: int) -> Replica:
        return self.replicas.setdefault(broker, Replica())

    def append(self, leader: int, leader_epoch: int) -> None:
        self.written += 1
        self.replica(leader).log.append((leader_epoch, self.written))

    def holds_all(self, broker: int) -> bool:
        """Whether this replica has every record that was committed."""
        return self.replica(broker).log[: len(self.committed)] == self.committed

    def forget(self, leader: int) -> None:
        """A leader that was elected uncleanly: what it does not hold is lost."""
        while not self.holds_all(leader):
            self.committed.pop()

    def commit(self, leader: int, end: int) -> None:
        if end > len(self.committed):
            self.committed = self.replica(leader).log[:end]


class Process:
    """A broker's process, and what lies on its disks when it does not run."""

    def __init__(self) -> None:
        self.runs = False
        self.epoch = -1
        self.stopped_cleanly = False
        self.wants_to_stop = False
        self.directories: list[bytes] = []


def described(image: MetadataImage) -> Any:
    return (
        image.controller_epoch, image.last_broker_epoch, image.features, image.brokers, image.broker_configs,
        {n: (t.topic_id, t.partitions, t.configs) for n, t in image.topics.items()},
    )  # fmt: skip
