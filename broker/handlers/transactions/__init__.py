"""Shell: transactions: producers' requests to their coordinator, its markers, and operators' questions."""

from broker.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)

__all__ = [
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "describe_producers",
    "describe_transactions",
    "end_txn",
    "init_producer_id",
    "list_transactions",
    "write_txn_markers",
]
