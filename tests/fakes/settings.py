"""Settings as a broker without a file has them, but for what a test says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from broker.cleaner.rpc import CleanerSettings
from broker.config.loader import load
from broker.log.config import LogConfig
from broker.worker.rpc import TierSettings


@cache
def _tier() -> TierSettings:
    return TierSettings.of(load(None).values())


@cache
def _cleaner() -> CleanerSettings:
    return CleanerSettings.of(load(None).values())


def tier_settings(**changes: Any) -> TierSettings:
    """Of the tier."""
    return replace(_tier(), **changes)


def cleaner_settings(**changes: Any) -> CleanerSettings:
    """Of the log cleaner."""
    return replace(_cleaner(), **changes)


def log_settings(**changes: Any) -> LogConfig:
    """Of a log, which is not tiered."""
    return LogConfig(**{"remote_storage_enable": False, **changes})
