"""A data directory of Apache Kafka that is not as it should be: killed in the middle, damaged, or behind another one."""

from __future__ import annotations

from pathlib import Path

from broker.log import names
from broker.log.checkpoint import decode_offsets
from tests.unit.kafka_folders import KafkaFolder, broker_record, topic_records
from tests.unit.test_adoption import batch, take_over


def orders_folder(folder: Path, *more: object, node_id: int = 1) -> KafkaFolder:
    """One topic of this broker's, with one segment of one record."""
    kafka = KafkaFolder(folder / "log", node_id=node_id)
    kafka.metadata([broker_record(1, 11), *topic_records("orders", 1), *more])
    kafka.log("orders", 0, {0: batch(0)}, number=1, epochs=[(3, 0)])
    return kafka


# -- killed in the middle --------------------------------------------------------------------------


def test_a_first_segment_that_was_being_swapped_is_the_first(tmp_path: Path) -> None:
    """Kafka's cleaner was killed between taking the old segment away and putting the new one in its place."""
    kafka = KafkaFolder(tmp_path / "log")
    kafka.metadata([broker_record(1, 11), *topic_records("state", 1, cleanup_policy="compact")])
    folder = kafka.log("state", 0, {0: batch(0), 500: batch(500)}, number=1)
    log = folder / names.file_name(0, names.LOG)
    (folder / f"{log.name}{names.DELETED}").write_bytes(log.read_bytes())
    log.rename(folder / f"{log.name}{names.SWAP}")
    take_over(tmp_path)
    starts = decode_offsets((kafka.folder / names.LOG_START_OFFSET_CHECKPOINT).read_bytes())
    assert starts == {("state", 0): 0}
