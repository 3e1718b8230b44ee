"""The logs of a broker, of which a test says what is not as usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broker.log.config import DAY_MS, LogConfig, LogManagerSettings
from broker.log.directories.log_manager import (
    FailureHandling,
    LogManager,
    LogsInCluster,
)
from kafka_ds.process.seams import Background, Clock, Disk
from kafka_ds.process.system import InlineBackground, SystemClock, SystemDisk
from kafka_ds.protocol.topic_partition import TopicIdPartition, TopicPartition
from tests.fakes.settings import log_settings

HANDLING = ("soon", "directory_failed", "all_failed")


def log_manager(
    log_dirs: Sequence[str],
    *,
    disk: Disk,
    clock: Clock,
    background: Background,
    node_id: int,
    config: LogConfig | None = None,
    config_for: Callable[[str], LogConfig] | None = None,
    recovery_threads: int = 1,
    **more: Any,
) -> LogManager:
    """Of a broker; `config_for` wins over `config`. `more`: what the cluster says, and what follows failures."""
    config = config or log_settings()
    handling = {name: more.pop(name) for name in HANDLING if name in more}
    return LogManager(
        log_dirs,
        LogManagerSettings(num_recovery_threads_per_data_dir=recovery_threads),
        node_id=node_id,
        disk=disk,
        clock=clock,
        background=background,
        cluster=LogsInCluster(
            config_for=config_for or (lambda _: config),
            producer_id_expiration_ms=lambda: DAY_MS,
            **more,
        ),
        failures=FailureHandling(**handling),
    )


def logs_on_disk(folder: str | Path, config: LogConfig) -> LogManager:
    """Of a broker on the machine's disk, loaded."""
    manager = log_manager(
        [str(folder)],
        disk=SystemDisk(),
        clock=SystemClock(),
        background=InlineBackground(),
        node_id=1,
        config=config,
    )
    manager.load()
    return manager


class ScriptedLog:
    """A log without files, that has what a test says."""

    def __init__(self, partition: TopicIdPartition, **has: Any) -> None:
        self.topic_id_partition = partition
        self.topic_id, self.topic, self.partition = partition
        self.topic_partition = TopicPartition(self.topic, self.partition)
        self.name = str(partition)
        vars(self).update(has)
