"""Pure: limits on the number of connections and their creation rate (KIP-308, KIP-402, KIP-612).

- Limits apply to the broker, a listener and an address. If the broker is full, the inter-broker listener still accepts
  connections unless it is the only one; `is_full` says that a client connection has to be closed for it.
- Connections above max.connection.creation.rate are delayed, not refused: by at most WAIT_SECONDS_MAX, and with a burst
  of one second. A separate inter-broker listener is exempt from the broker-wide rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

BURST_SECONDS = 1.0
WAIT_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The current limits; `of_listener` and `of_host` are overrides."""

    connections_max: int
    per_host_max: int
    per_second_max: int
    of_listener: Mapping[str, int] = field(default_factory=dict)
    of_host: Mapping[str, int] = field(default_factory=dict)
    listener_per_second_max: Mapping[str, int] = field(default_factory=dict)
    # The inter-broker listener, unless it is the only one.
    protected_listener: str | None = None


class ConnectionLimits:
    """Counts open connections against the limits."""

    def __init__(self, settings: LimitSettings) -> None:
        self.settings = settings
        self.total = 0
        self._of_host: Counter[str] = Counter()
        self._of_listener: Counter[str] = Counter()
        self._next_due_s: dict[
            str, float
        ] = {}  # of the next connection, by listener; "" for the broker

    def configure(self, settings: LimitSettings) -> None:
        """Apply changed settings; open connections stay open."""
        self.settings = settings

    def refusal(self, host: str, listener: str) -> str | None:
        """Why another connection is refused, or None."""
        settings = self.settings
        if self.total >= settings.connections_max and listener != settings.protected_listener:
            return f"max.connections={settings.connections_max} is reached"
        own = settings.of_listener.get(listener)
        if own is not None and self._of_listener[listener] >= own:
            return f"listener.name.{listener.lower()}.max.connections={own} is reached"
        of_host = settings.of_host.get(host, settings.per_host_max)
        if self._of_host[host] >= of_host:
            which = ".overrides" if host in settings.of_host else ""
            return f"max.connections.per.ip{which}={of_host} is reached"
        return None

    @property
    def is_full(self) -> bool:
        """Whether a connection on the protected listener replaces one of another listener."""
        return self.total >= self.settings.connections_max

    def opened(self, host: str, listener: str) -> None:
        """Count a new connection."""
        self.total += 1
        self._of_host[host] += 1
        self._of_listener[listener] += 1

    def closed(self, host: str, listener: str) -> None:
        """Count a closed connection."""
        self.total -= 1
        self._of_host[host] -= 1
        self._of_listener[listener] -= 1
        if not self._of_host[host]:
            del self._of_host[host]

    def delay_s(self, listener: str, now_s: float) -> float:
        """The delay of a new connection, in seconds."""
        is_protected = listener == self.settings.protected_listener
        rates = {} if is_protected else {"": self.settings.per_second_max}
        if listener in self.settings.listener_per_second_max:
            rates[listener] = self.settings.listener_per_second_max[listener]
        longest = 0.0
        for name, rate in rates.items():
            due = max(self._next_due_s.get(name, 0.0), now_s - BURST_SECONDS)
            due = min(due, now_s + WAIT_SECONDS_MAX)
            self._next_due_s[name] = due + 1.0 / rate
            longest = max(longest, due - now_s)
        return longest
