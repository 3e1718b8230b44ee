"""Settings as a broker without a file has them, but for what a test says."""

from __future__ import annotations

from typing import Any

from broker.cleaner.rpc import CleanerSettings
from broker.log.config import LogConfig
from broker.worker.settings import TierSettings


def tier_settings(**changes: Any) -> TierSettings:
    """Of the tier."""
    return TierSettings(**changes)


def cleaner_settings(**changes: Any) -> CleanerSettings:
    """Of the log cleaner."""
    return CleanerSettings(**changes)


def log_settings(**changes: Any) -> LogConfig:
    """Of a log, which is not tiered."""
    return LogConfig(**{"remote_storage_enable": False, **changes})
