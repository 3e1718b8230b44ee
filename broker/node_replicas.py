"""Shell: what following and moving need of a broker, taken from it.

It only passes on; rates are those in force at the moment of asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.rates import ByteRate
from broker.replica.fetcher.context import FetcherContext
from broker.replica.moves import LogMoves, LogMovesContext
from broker.replica.topic_metrics import topic_metrics

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker


def fetcher_context_of(node: KafkaBroker) -> FetcherContext:
    """What fetchers need."""
    config = node.config
    return FetcherContext(
        network=node.network,
        clock=node.clock,
        image=node.metadata,
        node_id=config.node_id,
        listener=config.inter_broker_listener,
        config=lambda: node.config,
        logs=node.log_manager,
        remote_log_manager=node.remote_log_manager,
        topic_metrics=topic_metrics(),
        throttle=ByteRate(
            lambda: node.config.follower_replication_throttled_rate,
            samples_max=config.replication_quota_window_num,
            sample_ms=config.replication_quota_window_size_seconds * 1_000,
        ),
    )


def moves_of(node: KafkaBroker) -> LogMoves:
    """What moves replicas between the broker's directories."""
    config = node.config
    context = LogMovesContext(
        clock=node.clock,
        throttle=ByteRate(
            lambda: node.config.replica_alter_log_dirs_io_max_bytes_per_second,
            samples_max=config.alter_log_dirs_replication_quota_window_num,
            sample_ms=config.alter_log_dirs_replication_quota_window_size_seconds * 1_000,
        ),
        at_once=config.num_replica_alter_log_dirs_threads or len(config.log_dirs),
        backoff_ms=config.replica_fetch_backoff_ms,
        node_id=config.node_id,
        directories=node.member.directories,
        driver=node.metadata_driver,
    )
    return LogMoves(node.log_manager, context)
