"""A data directory of an Apache Kafka that is long out of support: what its files did not say yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.adoption.plan import UNSEEN_LEADER_EPOCHS
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.types import uuid_from_text
from kafka_ds.segments import names
from tests.in_process import in_process, values_of
from tests.loops import in_loop
from tests.unit.adoption.kafka_folders import CLUSTER_ID, KafkaFolder, broker_record
from tests.unit.adoption.taken_over import batch, image_of, take_over
from tests.unit.records.old_sets import encode_all, some_entries


@in_loop
async def test_directories_of_before_2_4_do_not_name_their_cluster(tmp_path: Path) -> None:
    """Only ZooKeeper knew its id: it gets a new one, which the directories keep from the first start on."""
    folders = [
        KafkaFolder(tmp_path / name, is_zookeepers=True, cluster_id=None)
        for name in ("log", "log-2")
    ]
    for partition, kafka in enumerate(folders):
        kafka.log("orders", partition, {0: batch(0)})
    both = [kafka.folder for kafka in folders]
    given = ["*:cleanup.policy=delete"]
    tried = take_over(tmp_path, *both, topic_configs=given, dry_run=True)
    lines = take_over(tmp_path, *both, topic_configs=given)
    cluster_id = image_of(tmp_path).cluster_id
    assert cluster_id is not None
    assert len(uuid_from_text(cluster_id)) == 16
    # The id that a dry run has thought of is nobody's: both say the same but at the end.
    assert tried[:-1] == lines[:-1]
    assert "Kafka before 2.4 has no cluster id: the cluster gets a new one" in lines
    assert lines[-1] == f"cluster {cluster_id}: broker 1 is adopted; start it"
    log_dirs = ",".join(map(str, both))
    async with in_process(tmp_path, node_id=1, log_dirs=log_dirs) as broker:
        assert values_of((await broker.fetch("orders", 0)).records) == [b"v"]
    for kafka in folders:
        assert f"cluster.id={cluster_id}\n" in (kafka.folder / names.META_PROPERTIES).read_text()


def zookeepers_folder(
    folder: Path, cluster_id: str | None = CLUSTER_ID, name: str = "log"
) -> KafkaFolder:
    kafka = KafkaFolder(folder / name, is_zookeepers=True, cluster_id=cluster_id)
    kafka.log("orders", 0, {20: batch(20)})
    return kafka


@pytest.mark.parametrize("cluster_id", [None, CLUSTER_ID], ids=["before 2.4", "named"])
@in_loop
async def test_zookeepers_folders_are_taken_over_again_as_long_as_nobody_was_started(
    tmp_path: Path, cluster_id: str | None
) -> None:
    """The first attempt was killed after its commit, or never learned the commit's outcome."""
    kafka = zookeepers_folder(tmp_path, cluster_id)
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    image, before = image_of(tmp_path), kafka.contents()
    for dry_run in (True, False):
        lines = take_over(tmp_path, dry_run=dry_run)
        said = f"cluster {image.cluster_id} was adopted already: 1 log of this broker"
        assert lines[0] == said
    assert (image_of(tmp_path).version, kafka.contents()) == (image.version, before)
    async with in_process(tmp_path, node_id=1) as broker:
        assert values_of((await broker.fetch("orders", 20)).records) == [b"v"]
    with pytest.raises(ConfigError, match="node.id=1 was started in it"):
        take_over(tmp_path)


@pytest.mark.parametrize("cluster_id", [None, CLUSTER_ID], ids=["before 2.4", "named"])
def test_zookeepers_folders_do_not_join_a_lake_of_others(
    tmp_path: Path, cluster_id: str | None
) -> None:
    """Neither unmarked, nor if they were marked and another cluster was faster."""
    zookeepers_folder(tmp_path, cluster_id)
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    second = zookeepers_folder(tmp_path, cluster_id, "log-2")
    for lake in ("elsewhere", "lake"):
        (second.folder / names.ADOPTED).write_text(str(tmp_path / lake))
        before = second.contents()
        with pytest.raises(
            ConfigError,
            match=r"log\.dirs belong to a cluster without an id|is not one of its brokers",
        ):
            take_over(tmp_path, second.folder)
        assert second.contents() == before


@in_loop
async def test_folders_whose_lake_is_lost_are_told_so(tmp_path: Path) -> None:
    """After the first start they look like folders of a cluster whose metadata log is elsewhere."""
    zookeepers_folder(tmp_path)
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    lake = tmp_path / "lake"
    async with in_process(tmp_path, node_id=1):
        pass
    lake.rename(tmp_path / "lost")
    with pytest.raises(ConfigError, match=f"started on lake.uri={lake} since, restore that lake"):
        take_over(tmp_path)


@pytest.mark.parametrize("ids", [(None, CLUSTER_ID), (CLUSTER_ID, None)], ids=["first", "second"])
def test_all_directories_name_one_cluster_or_none(
    tmp_path: Path, ids: tuple[str | None, str | None]
) -> None:
    folders = [
        KafkaFolder(tmp_path / name, is_zookeepers=True, cluster_id=cluster_id).folder
        for name, cluster_id in zip(("log", "log-2"), ids, strict=True)
    ]
    with pytest.raises(ConfigError, match="belongs to another cluster than"):
        take_over(tmp_path, *folders)


def test_a_metadata_log_is_of_a_cluster_that_has_an_id(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log", cluster_id=None)
    kafka.metadata([broker_record(1, 11)])
    with pytest.raises(ConfigError, match=r"meta\.properties has no cluster\.id"):
        take_over(tmp_path)


def test_the_preview_of_kraft_in_2_8_is_refused(tmp_path: Path) -> None:
    kafka = KafkaFolder(tmp_path / "log")
    kafka.log("@metadata", 0, {0: b""})
    with pytest.raises(ConfigError, match="@metadata-0 is a metadata log of Kafka 2.8"):
        take_over(tmp_path)


def test_a_metadata_log_that_lies_elsewhere_is_missed(tmp_path: Path) -> None:
    """Its brokers' folders are not taken for ZooKeeper's, without settings and with one replica each."""
    KafkaFolder(tmp_path / "log").log("orders", 0, {0: batch(0)}, number=1)
    with pytest.raises(ConfigError, match="a KRaft cluster .* --metadata-log-dir"):
        take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])


def test_leader_epochs_are_above_those_that_zookeeper_alone_knew(tmp_path: Path) -> None:
    """Logs of format 0 or 1 know no epochs, others only those with which something was written here.

    A client that was told a higher one by Kafka, and runs on, would take ours for news of the past.
    """
    kafka = KafkaFolder(tmp_path / "log", is_zookeepers=True)
    kafka.log("old", 0, {0: encode_all(some_entries())})
    kafka.log("orders", 0, {0: batch(0)}, epochs=[(4, 0)])
    take_over(tmp_path, topic_configs=["*:cleanup.policy=delete"])
    topics = image_of(tmp_path).topics
    epochs = [topics[name].partitions[0].leader_epoch for name in ("old", "orders")]
    assert epochs == [UNSEEN_LEADER_EPOCHS, 4 + UNSEEN_LEADER_EPOCHS]
