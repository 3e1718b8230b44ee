"""Pure: the settings of transactions out of a broker's.

Rules of this file: names are the same on both sides, so nothing can be forgotten. Whether somebody has set the
replication factor is not a setting, and follows from where it came from.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.transactions.values import TransactionSettings


def transaction_settings(config: Any) -> TransactionSettings:
    """What a broker's configuration says of transactions."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(TransactionSettings)
    }
    given["is_replication_factor_set"] = (
        "transaction.state.log.replication.factor" in config.origins
    )
    return TransactionSettings(**given)
