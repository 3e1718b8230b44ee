"""Shell: all logs of a broker: its log directories, their checkpoints, retention and deletion.

Rules of this file: only the event loop's thread calls it; what waits goes to Background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.seams import Background, Clock, Disk


class LogManager:
    """The logs of a broker, by topic and partition."""

    cluster_id: str
    directory_ids: dict[str, bytes]
    previous_broker_epoch: int

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        disk: Disk,
        clock: Clock,
        background: Background,
        node_id: int,
        cluster_id: str | None = None,
        config: LogConfig | None = None,
        config_for: Callable[[str], LogConfig] | None = None,
        flush_offset_checkpoint_interval_ms: int = 60_000,
        retention_check_interval_ms: int = 300_000,
    ) -> None:
        """`config_for(topic)` wins over `config`; no `cluster_id`: that of the disks, or a new one."""
        raise NotImplementedError

    def load(self) -> None:
        """Lock the directories and open every log in them, recovering where needed."""
        raise NotImplementedError

    def get(self, topic: str, partition: int) -> Log | None:
        raise NotImplementedError

    def create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig | None = None
    ) -> Log:
        """The log of a partition, made if it is not there; another topic id's leftover goes."""
        raise NotImplementedError

    def delete(self, topic: str, partition: int) -> None:
        """Take the log out of sight at once, and its files from disk after file.delete.delay.ms."""
        raise NotImplementedError

    def logs(self) -> Iterable[Log]:
        raise NotImplementedError

    def checkpoint_high_watermarks(self, high_watermarks: dict[tuple[str, int], int]) -> None:
        """Write replication-offset-checkpoint."""
        raise NotImplementedError

    def high_watermark_checkpoints(self) -> dict[tuple[str, int], int]:
        """What the last replication-offset-checkpoint said, at load."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> None:
        """Do what is due: roll by time, flush by time, retention, checkpoints, deletes."""
        raise NotImplementedError

    def close(self, broker_epoch: int = -1) -> None:
        """Flush and close every log and leave the clean-shutdown marker."""
        raise NotImplementedError
