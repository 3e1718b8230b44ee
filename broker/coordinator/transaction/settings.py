"""Pure: the settings of transactions from a broker's settings.

Rules of this file: names are the same on both sides, so none can be forgotten. Whether the replication factor was set
by the user is no setting itself; it follows from where its value came from.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.coordinator.transaction.values import TransactionSettings


def transaction_settings(config: Any) -> TransactionSettings:
    """What a broker's configuration says of transactions."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(TransactionSettings)
    }
    given["is_replication_factor_set"] = (
        "transaction.state.log.replication.factor" in config.origins
    )
    return TransactionSettings(**given)
