"""Pure: limits the connection creation rate per IP address (`connection_creation_rate`, KIP-612).

- An address has its own quota, else the default `ip` quota, else none. `WindowedRate` measures the rate.
- A connection above the quota is delayed by at most one sample and then closed. It does not count, so a client that
  keeps trying connects in the end.
- At most ADDRESSES_MAX addresses are kept, least recently used first to go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.metadata.quota_names import CONNECTION_CREATION_RATE, IP
from broker.rates import WindowedRate
from broker.transport.addresses import one_text

if TYPE_CHECKING:
    from broker.metadata.security_image import QuotaEntity

ADDRESSES_MAX = 10_000


class AddressRates:
    """The connection rates of one broker, over all its listeners."""

    def __init__(self, *, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        # By address; None is the default quota.
        self._quotas: dict[str | None, float] = {}
        self._rates: OrderedDict[str, WindowedRate] = OrderedDict()

    def replace(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Replace all quotas."""
        self._quotas = {
            each.entity_name and one_text(each.entity_name): values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            for each in entity
            if each.entity_type == IP and CONNECTION_CREATION_RATE in values
        }

    def wait_ms(self, address: str, now_ms: int) -> int:
        """Count a new connection; returns its delay in ms before it is closed, 0 if it is accepted."""
        if not self._quotas:
            return 0
        limit = self._quotas.get(address, self._quotas.get(None))
        if limit is None:
            return 0
        rates = self._rates
        known = rates.setdefault(address, WindowedRate(self._samples, self._window_ms))
        rates.move_to_end(address)
        if len(rates) > ADDRESSES_MAX:
            rates.popitem(last=False)
        known.record(1, now_ms)
        above = known.rate(now_ms) - limit
        if above <= 0:
            return 0
        wait_ms = above / limit * known.span_ms(now_ms)
        known.record(-1, now_ms)
        return max(round(min(wait_ms, self._window_ms)), 1)
