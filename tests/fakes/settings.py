"""Settings as a broker without a file has them, but for what a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.cleaner.rpc import CleanerSettings
from broker.config.broker import BrokerConfig
from broker.controller.draft import Defaults
from broker.log.config import LogConfig
from broker.worker.rpc import TierSettings


def tier_settings(**changes: Any) -> TierSettings:
    """Of the tier."""
    return TierSettings(**changes)


def cleaner_settings(**changes: Any) -> CleanerSettings:
    """Of the log cleaner."""
    return CleanerSettings(**changes)


def log_settings(**changes: Any) -> LogConfig:
    """Of a log, which is not tiered."""
    return LogConfig(**{"remote_storage_enable": False, **changes})


def controller_defaults(**changes: Any) -> Defaults:
    """Of a controller."""
    config = BrokerConfig()
    given = Defaults(
        num_partitions=config.num_partitions,
        replication_factor=config.default_replication_factor,
        min_insync_replicas=config.topic.min_insync_replicas,
        unclean_leader_election_enable=config.topic.unclean_leader_election_enable,
    )
    return replace(given, **changes)
