"""Pure: what a broker shows of its logs, partitions and tier, under Kafka's names in their Prometheus spelling.

Rules of this file: it reads state and changes none; what grows ends in `_total`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from broker.groups.metrics import group_samples

if TYPE_CHECKING:
    from broker.net.metrics import Sample
    from broker.node import Node
    from broker.replica.hosted import HostedPartition

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


_OF_PARTITION: Mapping[str, Callable[[HostedPartition], int]] = {
    "size": lambda partition: partition.log.size_bytes,
    "logstartoffset": lambda partition: partition.log.log_start_offset,
    "logendoffset": lambda partition: partition.log.log_end_offset,
    "highwatermark": lambda partition: partition.high_watermark,
    "highestoffsetinremotestorage": lambda partition: (
        partition.log.highest_offset_in_remote_storage
    ),
}


def node_samples(node: Node) -> Iterator[Sample]:
    """Gauges and counters of the broker as a whole."""
    partitions = list(node.replica_manager)
    yield "kafka_server_replicamanager_partitioncount", {}, len(partitions)
    yield "kafka_server_replicamanager_leadercount", {}, len(partitions)
    yield (
        "kafka_controller_kafkacontroller_activecontrollercount",
        {},
        int(node.controller.is_active),
    )
    yield "kafka_controller_kafkacontroller_globaltopiccount", {}, len(node.metadata.topics)
    for name, read in _OF_PARTITION.items():
        for partition in partitions:
            labels = {"topic": partition.topic, "partition": str(partition.index)}
            yield f"kafka_log_log_{name}", labels, read(partition)
    yield from group_samples(node.groups.shards())
    if node.tier is not None:
        for name, total in node.tier.metrics.values().items():
            yield f"kafka_server_brokertopicmetrics_{_snake(name)}", {}, total


def _snake(name: str) -> str:
    """RemoteCopyBytes -> remote_copy_bytes_total; queue sizes go up and down."""
    words = _WORD_START.sub("_", name).lower()
    return words if words.endswith("_size") else f"{words}_total"
