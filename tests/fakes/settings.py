"""Settings as a broker without a file has them, but for what a test says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.cleaner.rpc import CleanerSettings
from broker.config.broker import BrokerConfig
from broker.controller.draft import Defaults
from broker.log.config import LogConfig
from broker.worker.rpc import TierSettings
from kafka_ds.sink.load_plan import LoadPlan


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


def load_plan(load: str, lake: str = "", **changes: Any) -> LoadPlan:
    """Of a load into a topic that takes all."""
    plan = LoadPlan(
        load=load,
        topic="t",
        lake=lake,
        partition_count=1,
        is_compacted=False,
        uses_log_append_time=False,
        max_message_bytes=1 << 20,
        oldest_ms=0,
        newest_ms=1 << 53,
        oldest_by="",
        retention_bytes=-1,
        keys_decide=True,
        batch_bytes=1 << 14,
    )
    return replace(plan, **changes)
