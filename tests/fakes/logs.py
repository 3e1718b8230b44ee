"""The logs of a broker, of which a test says what is not as usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.log.config import DAY_MS, LogConfig
from broker.log.directories.log_manager import (
    FailureHandling,
    LogManager,
    LogManagerSettings,
    LogsInCluster,
)
from kafka_ds.process.seams import Background, Clock, Disk
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
        LogManagerSettings(
            log_dirs=log_dirs,
            node_id=node_id,
            flush_offset_checkpoint_interval_ms=60_000,
            retention_check_interval_ms=300_000,
            recovery_threads=recovery_threads,
        ),
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
