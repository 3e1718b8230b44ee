"""Pure: how fast connections may come from an address: the quota `connection_creation_rate` (KIP-612).

- An address has the quota of its own, else that of all others (the default `ip`), else none.
- The rate is taken as those of clients are (`broker.security.quotas.quotas`). A client that connects too fast is
  rejected: it is kept waiting, for no longer than a sample, and then disconnected. This does not count as a
  connection, so that a client that keeps trying gets in.
- Of more than ADDRESSES_MAX addresses, those unused for longest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.metadata.quota_names import CONNECTION_CREATION_RATE, IP
from broker.security.quotas.quotas import WindowedRate
from broker.transport.addresses import one_text

if TYPE_CHECKING:
    from broker.metadata.security_image import QuotaEntity

ADDRESSES_MAX = 10_000


class AddressRates:
    """One broker's, over all its listeners."""

    def __init__(self, *, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        # By address; that of all others as None.
        self._quotas: dict[str | None, float] = {}
        self._rates: OrderedDict[str, WindowedRate] = OrderedDict()

    def replace(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """From now on these are the quotas."""
        self._quotas = {
            each.entity_name and one_text(each.entity_name): values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            for each in entity
            if each.entity_type == IP and CONNECTION_CREATION_RATE in values
        }

    def wait_ms(self, address: str, now_ms: int) -> int:
        """One more comes from an address: for how long it is kept waiting; 0: it is accepted, and counts."""
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
