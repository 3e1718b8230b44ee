"""A copy of a lake takes the place of the first one, step by step, and again after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.controller.draft import Draft
from broker.diskless.wal_object import (
    WalPart,
    checkpoint_path,
    decode_header,
    encode,
    encode_checkpoint,
    object_path,
)
from broker.membership.lease import LEASE_PATH
from broker.metadata.events import (
    ClusterCreated,
    ClusterFenced,
    ClusterPromoted,
    ConfigChanged,
    ControllerChange,
    Event,
    PartitionChanged,
    PartitionRegistration,
    RegisterBroker,
    TopicCreated,
    WalId,
    from_json,
    to_json,
)
from broker.metadata.image import MetadataImage
from broker.metadata.log import FencedCluster, MetadataLog, refuse_if_fenced
from broker.promote import Promotion
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.uri import open_store
from kafka_ds.process.crash_points import PROMOTION_POINTS
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.topic.commit_rules import LeaderEpochFenced
from kafka_ds.topic.metadata_table import MetadataPosition
from kafka_ds.topic.offsets import OffsetsTable
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of, filled_table
from tests.fakes.settings import controller_defaults
from tests.s3_server import address_for

LED = PartitionRegistration(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=3, partition_epoch=9)
EVENTS: list[Event] = [
    ClusterCreated(cluster_id="c"),
    ControllerChange(controller_id=1, controller_epoch=5),
    RegisterBroker(broker_id=1, incarnation_id=bytes(16), endpoints=(), broker_epoch=4),
    RegisterBroker(
        broker_id=2, incarnation_id=bytes(16), endpoints=(), broker_epoch=5, fenced=True
    ),
    TopicCreated(topic="orders", topic_id=TOPIC_ID),
    PartitionChanged(topic="orders", topic_id=TOPIC_ID, partition=0, registration=LED),
]
PUBLISHED = {
    "kind": "partition", "topic": "orders", "topic_id": "AQIDBAUGBwgJCgsMDQ4PEA", "partition": 0, "leader_epoch": 3,
    "log_start_offset": 0, "local_log_start_offset": 0, "last_stable_offset": 55, "high_watermark": 55,
    "log_end_offset": 55, "size_bytes": 1, "event_time": 1,
}  # fmt: skip


class Killed(BaseException):
    """The process died."""


class Regions:
    """The first lake, and a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = LocalStore(str(folder / "first"))
        self.copy = LocalStore(str(folder / "copy"))
        log = MetadataLog(self.first)
        log.commit(log.begin(EVENTS, log.load()))
        filled_table(self.first)
        OffsetsTable(self.first).replace(1, [PUBLISHED])
        self.first.put_durable(LEASE_PATH, b"lease")
        self.said: list[str] = []
        self.waited = 0.0

    def replicate(self) -> None:
        shutil.copytree(self.folder / "first", self.folder / "copy", dirs_exist_ok=True)

    def promotion(
        self,
        *,
        is_forced: bool = False,
        knows_first: bool = True,
        crash: Callable[[str], None] = lambda point: None,
    ) -> Promotion:
        return Promotion(
            self.copy,
            self.first if knows_first else None,
            self.said.append,
            is_forced=is_forced,
            sleep=self.sleep,
            crash=crash,
        )

    def sleep(self, seconds: float) -> None:
        self.waited += seconds

    def image(self, store: LocalStore) -> MetadataImage:
        return MetadataLog(store).load(begins=False)


def make_diskless(regions: Regions, *, claimed: int, setting: str = "true") -> None:
    """Let a partition be diskless, and its write-ahead log claim that the table has had all up to this offset."""
    wal = WalId(1, 4)
    log, topic = MetadataLog(regions.first), {"topic": "orders", "topic_id": TOPIC_ID}
    events: list[Event] = [
        ConfigChanged(
            resource_type=TOPIC_RESOURCE,
            resource_name="orders",
            name="lake.diskless",
            value=setting,
        ),
        PartitionChanged(
            **topic, partition=0, registration=replace(LED, partition_epoch=10, wals=(wal,))
        ),  # type: ignore[arg-type]
    ]
    log.commit(log.begin(events, log.load(begins=False)))
    data = encode_checkpoint(bytes(16), 2, {(TOPIC_ID, 0): claimed, (TOPIC_ID, 1): 7})
    regions.first.put_durable(checkpoint_path(wal, 4), data)
    behind = WalPart(TOPIC_ID, 0, 3, claimed + 1, claimed + 9, b"batches")
    regions.first.put_durable(object_path(wal, 2), encode(bytes(16), 2, [behind]))


def claims(regions: Regions) -> list[tuple[int, int]]:
    """By partition: up to which offset the newest checkpoint of the copy says that the table has had records."""
    newest = max(e.path for e in regions.copy.list("wal/1/4") if "checkpoint" in e.path)
    header = decode_header(regions.copy.read(newest))
    assert header.acked_to == 2
    return sorted((each.partition, each.last_offset) for each in header.entries)


def test_a_diskless_partition_goes_on_where_the_copys_table_ends(regions: Regions) -> None:
    """Its newest commits have not arrived, and the objects with their records were erased."""
    make_diskless(regions, claimed=59)
    regions.replicate()
    regions.promotion(is_forced=True, knows_first=False).run()
    (said,) = [each for each in regions.said if each.startswith("orders-0: ")]
    assert "offsets 40 to 59 were acknowledged, and are neither in the topic's table" in said
    assert claims(regions) == [(0, 39), (1, 7)]
    assert regions.image(regions.copy).promoted_in == regions.copy.uri("")


@pytest.mark.parametrize("setting", ["true", "false"])
def test_what_a_diskless_partition_has_lost_is_given_up_only_by_force(
    regions: Regions, setting: str
) -> None:
    """The first lake itself has lost it."""
    make_diskless(regions, claimed=59, setting=setting)
    regions.replicate()
    with pytest.raises(ConfigError, match="orders-0: offsets 40 to 59 were ackn.*--force"):
        regions.promotion().run()
    assert claims(regions) == [(0, 59), (1, 7)]
    regions.promotion(is_forced=True).run()
    assert claims(regions) == [(0, 39), (1, 7)]


def test_a_diskless_partition_whose_table_has_everything_loses_nothing(regions: Regions) -> None:
    make_diskless(regions, claimed=39)
    regions.replicate()
    regions.promotion(is_forced=True, knows_first=False).run()
    assert not [each for each in regions.said if each.startswith("orders-0: ")]
    assert len([e for e in regions.copy.list("wal/1/4") if "checkpoint" in e.path]) == 1


def test_a_diskless_partition_goes_on_above_all_leader_epochs_of_its_logs(regions: Regions) -> None:
    """The metadata of a leader have not arrived; nobody could take over its batches in an earlier epoch."""
    make_diskless(regions, claimed=39)
    later = [
        WalPart(TOPIC_ID, 0, 8, 40, 41, b"batches"),
        WalPart(TOPIC_ID, 1, 20, 0, 1, b"batches"),
    ]
    regions.first.put_durable(object_path(WalId(1, 4), 3), encode(bytes(16), 2, later))
    regions.replicate()
    regions.promotion(is_forced=True, knows_first=False).run()
    assert regions.image(regions.copy).topics["orders"].partitions[0].leader_epoch == 9


def test_no_broker_gets_a_write_ahead_log_whose_registration_has_not_arrived(
    regions: Regions,
) -> None:
    make_diskless(regions, claimed=39)
    regions.replicate()
    # Registered in the commit after the one that had arrived last, which promotion takes the place of.
    late = WalId(1, MetadataPosition(regions.image(regions.copy).version + 2, 0).epoch)
    behind = WalPart(TOPIC_ID, 0, 5, 40, 49, b"batches")
    regions.copy.put_durable(object_path(late, 0), encode(bytes(16), 0, [behind]))
    regions.promotion(is_forced=True, knows_first=False).run()
    image = regions.image(regions.copy)
    assert Draft(image, controller_defaults()).next_broker_epoch() > late.broker_epoch
    assert set(image.brokers) == {1, 2}


@pytest.fixture
def regions(tmp_path: Path) -> Regions:
    return Regions(tmp_path)


def is_promoted(regions: Regions, end: int = 39, epoch: int = 5) -> None:
    first, copy = regions.image(regions.first), regions.image(regions.copy)
    where = regions.copy.uri("")
    assert (first.fenced_by, first.promoted_in) == (where, None)
    assert (copy.fenced_by, copy.promoted_in, copy.cluster_id) == (None, where, "c")
    assert [each.fenced for each in copy.brokers.values()] == [True, True]
    state = copy.topics["orders"].partitions[0]
    # Above the fence, which is above all leaders of the first region.
    assert (state.leader, state.leader_epoch) == (-1, epoch)
    assert (state.isr, state.replicas) == ((1,), (1, 2))
    table = TopicTable(regions.copy, "orders")
    assert table.read().highest_offset_in_remote_storage(0) == end
    commit(table, copy_of(table, 0, end + 1, end + 10, leader_epoch=epoch))


def test_the_first_lake_is_fenced_and_the_copy_completed(regions: Regions) -> None:
    regions.replicate()
    shutil.rmtree(regions.folder / "copy" / "topics" / "orders" / "partition=0")
    (regions.folder / "copy" / "topics" / "orders" / commit_file(3)).unlink()
    regions.promotion().run()
    is_promoted(regions)
    assert regions.copy.size(LEASE_PATH) is None
    with pytest.raises(FencedCluster, match="fenced by kafka-ds promote: it goes on in the lake"):
        refuse_if_fenced(regions.image(regions.first), "first")
    refuse_if_fenced(regions.image(regions.copy), "copy")
    # A leader of the first region that does not know yet.
    late = TopicTable(regions.first, "orders")
    with pytest.raises(LeaderEpochFenced):
        late.read()
        commit(late, copy_of(late, 0, 40, 49, leader_epoch=3))
    assert (
        f"fenced {regions.first.uri('')}: its brokers stop, and commit nothing more" in regions.said
    )
    assert (
        "orders-0: goes on at 40: 15 offsets at least are lost, as the log had ended at 55 when that was published last"
        in regions.said
    )
    assert regions.said[-1].startswith("next: kafka-ds restore with lake.uri=")
    before = regions.image(regions.copy).version
    regions.said.clear()
    regions.promotion().run()
    assert regions.image(regions.copy).version == before
    assert regions.said == [
        f"{regions.copy.uri('')}: cluster c was promoted here before",
        "fenced 1 table",
    ]


@pytest.mark.parametrize("point", PROMOTION_POINTS)
def test_it_is_run_again_after_a_kill(regions: Regions, point: str) -> None:
    def die(here: str) -> None:
        if here == point:
            raise Killed

    with pytest.raises(Killed):
        regions.promotion(crash=die).run()
    # A controller of the first region may have been about to write.
    regions.promotion().run()
    is_promoted(regions)
    fences = [
        event
        for _, events in MetadataLog(regions.first).read_after(-1)
        for event in events
        if isinstance(event, ClusterFenced)
    ]
    assert len(fences) == 1


def test_without_the_first_lake_nothing_is_done_unless_it_is_forced(regions: Regions) -> None:
    regions.replicate()
    late = regions.folder / "copy" / "topics" / "orders" / commit_file(4)
    hole = regions.folder / "copy" / "topics" / "orders" / commit_file(3)
    hole.unlink()
    with pytest.raises(ConfigError, match="it cannot be fenced"):
        regions.promotion(knows_first=False).run()
    assert regions.image(regions.copy).promoted_in is None
    assert late.exists()
    regions.promotion(knows_first=False, is_forced=True).run()
    assert not late.exists()
    copy = regions.image(regions.copy)
    assert (copy.promoted_in, copy.fenced_by) == (regions.copy.uri(""), None)
    assert copy.topics["orders"].partitions[0].leader_epoch == 4
    assert (
        f"topics/orders: ends at version 2; version 4 is there and lacks topics/orders/{commit_file(3)}"
        in regions.said
    )
    table = TopicTable(regions.copy, "orders")
    assert table.read().highest_offset_in_remote_storage(0) == 19
    commit(table, copy_of(table, 0, 20, 29, leader_epoch=4))
    assert regions.image(regions.first).fenced_by is None
    # It can be reached again: it is fenced, and nothing is copied from it any more.
    before = regions.image(regions.copy).version
    regions.promotion().run()
    assert regions.image(regions.first).fenced_by == regions.copy.uri("")
    assert regions.image(regions.copy).version == before


def test_a_file_that_the_first_lake_lacks_too_is_given_up_by_force_alone(regions: Regions) -> None:
    regions.replicate()
    for name in ("first", "copy"):
        (path,) = (regions.folder / name / "topics" / "orders" / "partition=0").glob(f"{30:020d}-*")
        path.unlink()
    with pytest.raises(ConfigError, match="topics/orders: ends at version 3; version 5 is there"):
        regions.promotion().run()
    assert regions.image(regions.copy).promoted_in is None
    regions.promotion(is_forced=True).run()
    # The fence of the table was behind what was given up.
    is_promoted(regions, 29, 4)


def test_a_lake_with_writers_or_of_another_cluster_is_refused(
    regions: Regions, tmp_path: Path
) -> None:
    regions.replicate()

    def renew(seconds: float) -> None:
        regions.copy.put_durable(LEASE_PATH, b"renewed")

    with pytest.raises(ConfigError, match="stop the replication"):
        Promotion(regions.copy, regions.first, regions.said.append, sleep=renew).run()
    other = LocalStore(str(tmp_path / "other"))
    log = MetadataLog(other)
    log.commit(log.begin([ClusterCreated(cluster_id="d")], log.load()))
    with pytest.raises(ConfigError, match="is of cluster d, the copy of c"):
        Promotion(regions.copy, other, regions.said.append, sleep=regions.sleep).run()
    empty = LocalStore(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="holds no cluster"):
        Promotion(empty, None, regions.said.append, is_forced=True).run()
    with pytest.raises(ConfigError, match="--from .* holds no cluster"):
        Promotion(regions.copy, empty, regions.said.append, sleep=regions.sleep).run()
    assert regions.image(regions.first).fenced_by is None
    regions.promotion().run()
    second = LocalStore(str(tmp_path / "second"))
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with pytest.raises(ConfigError, match="the cluster goes on in .*copy already"):
        Promotion(second, regions.first, regions.said.append, sleep=regions.sleep).run()


def test_a_copy_with_commits_of_its_own_is_refused(regions: Regions) -> None:
    regions.replicate()
    own = regions.folder / "copy" / "topics" / "orders" / commit_file(4)
    own.write_text(own.read_text() + "\n")
    with pytest.raises(ConfigError, match="differs from that of the first lake"):
        regions.promotion().run()


def test_a_promotion_can_be_taken_back(regions: Regions) -> None:
    regions.replicate()
    regions.promotion().run()
    Promotion(regions.first, None, regions.said.append, is_forced=True, sleep=regions.sleep).run()
    image = regions.image(regions.first)
    assert (image.fenced_by, image.promoted_in) == (None, regions.first.uri(""))
    assert image.topics["orders"].partitions[0].leader_epoch == 5


def test_fences_survive_a_snapshot() -> None:
    image = MetadataImage()
    for version, event in enumerate(
        (EVENTS[0], ClusterPromoted(lake="a"), ClusterFenced(successor="b"))
    ):
        image.replay(from_json(to_json(event)), MetadataPosition(version, 0))
    again = MetadataImage()
    again.replay(image.snapshot(), MetadataPosition(9, 0))
    for each in (image, again, image.copy()):
        assert (each.promoted_in, each.fenced_by) == ("a", "b")


def test_lakes_in_buckets(s3_environment: None, tmp_path: Path) -> None:
    """From one to the other, object by object."""
    first, copy = (
        open_store(address_for(tmp_path / f"{tmp_path.name}-{name}")) for name in ("first", "copy")
    )
    log = MetadataLog(first)
    log.commit(log.begin(EVENTS, log.load()))
    filled_table(first)
    said: list[str] = []
    Promotion(copy, first, said.append, sleep=lambda seconds: None).run()
    assert MetadataLog(copy).load(begins=False).promoted_in == copy.uri("")
    assert MetadataLog(first).load(begins=False).fenced_by == copy.uri("")
    table = TopicTable(copy, "orders")
    assert table.read().highest_offset_in_remote_storage(0) == 39
    commit(table, copy_of(table, 0, 40, 49, leader_epoch=5))
