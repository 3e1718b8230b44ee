"""What must be true of every run, whatever happened in it.

These checks are independent of the product's code: they never ask it whether it did right. `Watch` looks at the nodes
during the run, `check_history` compares what readers got at the end with what producers were promised, and
`check_logs` compares replicas.
"""

from __future__ import annotations

from collections import defaultdict

from broker.kafka_broker import KafkaBroker
from tests.sim.clients import History, Partition, Promise
from tests.sim.readers import Consumer
from tests.sim.world import Host, World


class Watch:
    """Checks the nodes every few moments of virtual time."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Everything that was ever read below the high watermark. It must never change.
        self._committed: dict[tuple[str, int, int], bytes] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._controllers: dict[int, int] = {}
        self._high_watermarks: dict[tuple[int, int, bytes, int, int], int] = {}

    def look(self) -> None:
        """Check every running node."""
        self._world.truth.image()
        for host in self._world.up():
            if host.node is not None:
                self._look_at(host, host.node)

    def _look_at(self, host: Host, node: KafkaBroker) -> None:
        image = node.metadata
        if image.controller_epoch:
            known = self._controllers.setdefault(image.controller_epoch, image.controller_id)
            assert known == image.controller_id, (
                f"controller epoch {image.controller_epoch} is of {known} and {image.controller_id}"
            )
        for partition in node.replica_manager:
            leader = getattr(partition, "leader", None)
            if leader is None:
                continue
            place = (partition.topic_id, partition.partition, leader.leader_epoch)
            first = self._leaders.setdefault(place, host.node_id)
            assert first == host.node_id, f"{place}: led by {first} and {host.node_id}"
            assert leader.high_watermark <= partition.log.log_end_offset, place
            if leader.is_recovering:
                continue  # It begins at the lake's end, and is read by nobody before it has the rest.
            key = (host.node_id, id(host.process), *place)
            before = self._high_watermarks.get(key, -1)
            assert leader.high_watermark >= before, f"{place}: high watermark moved back"
            self._high_watermarks[key] = leader.high_watermark

    def read(self, consumer: Consumer, since: int) -> None:
        """Check a reader's new records: an offset holds the same value for every reader, for ever."""
        topic, index = consumer.partition
        for offset, value in consumer.read[since:]:
            known = self._committed.setdefault((topic, index, offset), value)
            assert known == value, f"{topic}-{index} at {offset}: was {known!r} and is {value!r}"


def check_history(
    history: History,
    uncommitted: dict[Partition, list[tuple[int, bytes]]],
    committed: dict[Partition, list[tuple[int, bytes]]],
) -> None:
    """Nothing acknowledged is lost, duplicated or out of order; a transaction is there whole or not at all."""
    for partition, read in uncommitted.items():
        _check_order(partition, read, history.ordered)
        _check_order(partition, committed[partition], history.ordered)
        places = {value: offset for offset, value in read}
        assert len(places) == len(read), f"{partition}: a value is there twice"
        for promise in history.promises:
            if promise.partition == partition and promise.offset is not None:
                _check_promise(promise, places)
    _check_transactions(history, committed)


def _check_promise(promise: Promise, places: dict[bytes, int]) -> None:
    for i, value in enumerate(promise.values):
        assert value in places, f"{promise.partition}: {value!r} was acknowledged and is lost"
        if promise.offset is not None and promise.offset >= 0:
            assert places[value] == promise.offset + i, (
                f"{promise.partition}: {value!r} was acknowledged at {promise.offset + i}, "
                f"and is at {places[value]}"
            )


def _check_order(partition: Partition, read: list[tuple[int, bytes]], ordered: set[bytes]) -> None:
    last: dict[bytes, int] = {}
    for offset, value in read:
        name, _, number = value.rpartition(b"-")
        if name not in ordered:
            continue
        assert last.get(name, -1) < int(number), (
            f"{partition}: {value!r} at {offset} is out of order"
        )
        last[name] = int(number)


def _check_transactions(
    history: History, committed: dict[Partition, list[tuple[int, bytes]]]
) -> None:
    visible = {value for read in committed.values() for _, value in read}
    parts: dict[int, list[Promise]] = defaultdict(list)
    for promise in history.promises:
        if promise.transaction is not None:
            parts[promise.transaction].append(promise)
        elif promise.offset is not None:
            missing = [value for value in promise.values if value not in visible]
            assert not missing, f"{promise.partition}: read_committed does not see {missing}"
    for number, promises in parts.items():
        outcome = history.outcomes[number]
        seen = [value in visible for promise in promises for value in promise.values]
        if outcome is None:
            assert all(seen) or not any(seen), f"transaction {number} is half there"
        elif outcome:
            assert all(seen), f"transaction {number} was committed and is not all there"
        else:
            assert not any(seen), f"transaction {number} was aborted and is visible"


def check_committed(history: History, read: list[tuple[int, bytes]]) -> None:
    """A reader with read_committed has seen no record of a transaction that was aborted in the end."""
    aborted = {
        value
        for promise in history.promises
        if promise.transaction is not None and history.outcomes[promise.transaction] is False
        for value in promise.values
    }
    seen = [value for _, value in read if value in aborted]
    assert not seen, f"a reader of committed records got {seen}"


def check_logs(world: World, partitions: list[Partition]) -> None:
    """The replicas of a partition hold the same bytes."""
    image = world.truth.image()
    for partition in partitions:
        registration = image.partition(*partition)
        assert registration is not None
        found = {
            each: _bytes_of(world.hosts[each - 1], partition) for each in registration.replicas
        }
        first_id, first = next(iter(found.items()))
        for node_id, data in found.items():
            shared = min(len(first), len(data))
            assert first[:shared] == data[:shared], f"{partition}: {node_id} and {first_id} differ"
            assert len(first) == len(data), (
                f"{partition}: {node_id} has {len(data)} bytes, {first_id} {len(first)}"
            )


def check_homes(world: World, partitions: list[Partition]) -> None:
    """Each replica lies in one log directory, the one that the cluster knows."""
    image = world.truth.image()
    for partition in partitions:
        registration = image.partition(*partition)
        assert registration is not None
        known = dict(zip(registration.replicas, registration.directories, strict=True))
        for node_id in registration.replicas:
            host = world.hosts[node_id - 1]
            found = homes(host, partition)
            assert len(found) == 1, f"{partition} of {host.name} is in {found}"
            assert host.node is not None
            ids = host.node.log_manager.directory_ids
            assert known[node_id] == ids[found.pop()], (
                f"{partition} of {host.name}: the cluster takes it for elsewhere"
            )


def homes(host: Host, partition: Partition) -> set[str]:
    """The log directories in which this host has a log of the partition."""
    folder = f"/{partition[0]}-{partition[1]}/"
    return {path.partition(folder)[0] for path in host.disk.paths() if folder in path}


def _bytes_of(host: Host, partition: Partition) -> bytes:
    folder = f"/{partition[0]}-{partition[1]}/"
    names = [path for path in host.disk.paths() if folder in path and path.endswith(".log")]
    assert names, f"{host.name} has no log of {partition}"
    return b"".join(bytes(host.disk.contents(name)) for name in names)
