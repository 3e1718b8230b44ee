"""Pure: the settings of transactions out of a broker's.

Rules of this file: names are the same on both sides, so nothing can be forgotten.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.transactions.values import TransactionSettings


def transaction_settings(config: Any) -> TransactionSettings:
    """What a broker's configuration says of transactions."""
    names = [each.name for each in fields(TransactionSettings)]
    return TransactionSettings(**{name: getattr(config, name) for name in names})
