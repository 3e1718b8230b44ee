"""Pure: the settings of transactions from a broker's settings.

Rules of this file: names are the same on both sides, so none can be forgotten. Whether the replication factor was set
by the user is no setting itself; it follows from where its value came from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The settings of all transactions, under Kafka's names, with its defaults."""

    add_partitions_to_txn_retry_backoff_max_ms: int = 100
    add_partitions_to_txn_retry_backoff_ms: int = 20
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_load_buffer_size: int = 5 * 1024 * 1024
    transaction_state_log_min_isr: int = 2
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_segment_bytes: int = 100 * 1024 * 1024
    is_replication_factor_set: bool = False


def transaction_settings(config: Any) -> TransactionSettings:
    """What a broker's configuration says of transactions."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(TransactionSettings)
    }
    given["is_replication_factor_set"] = (
        "transaction.state.log.replication.factor" in config.origins
    )
    return TransactionSettings(**given)
