"""Pure: how many connections there may be, and how fast they may come (KIP-308, KIP-402, KIP-612).

- Limits are of the whole broker, of a listener, of an address. Where the whole broker is full, brokers are still
  accepted by their own listener, if clients have another one: `is_full` says that one of theirs has to go.
- Connections beyond max.connection.creation.rate are not refused but wait their turn; a second's worth comes at once.
  No connection waits longer than WAIT_SECONDS_MAX, however many came before. For the whole broker's rate brokers do not
  wait, where they have a listener of their own; what they take counts in that of their listener alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

BURST_SECONDS = 1.0
WAIT_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The limits in force; `of_listener` and `of_host` where one has its own."""

    connections_max: int
    per_host_max: int
    per_second_max: int
    of_listener: Mapping[str, int] = field(default_factory=dict)
    of_host: Mapping[str, int] = field(default_factory=dict)
    listener_per_second_max: Mapping[str, int] = field(default_factory=dict)
    # The listener between brokers, where it is not the only one.
    protected_listener: str | None = None


class ConnectionLimits:
    """The open connections."""

    def __init__(self, settings: LimitSettings) -> None:
        self.settings = settings
        self.total = 0
        self._of_host: Counter[str] = Counter()
        self._of_listener: Counter[str] = Counter()
        self._turns: dict[str, float] = {}  # when the next one is due, by listener; "" for all

    def refusal(self, host: str, listener: str) -> str | None:
        """Why one more cannot come in, or None."""
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
        """Whether a connection of another listener is closed for one on the protected listener."""
        return self.total >= self.settings.connections_max

    def opened(self, host: str, listener: str) -> None:
        """Count one more."""
        self.total += 1
        self._of_host[host] += 1
        self._of_listener[listener] += 1

    def closed(self, host: str, listener: str) -> None:
        """One is gone."""
        self.total -= 1
        self._of_host[host] -= 1
        self._of_listener[listener] -= 1
        if not self._of_host[host]:
            del self._of_host[host]

    def delay_s(self, listener: str, now_s: float) -> float:
        """How long one that has just come has to wait, in seconds."""
        is_protected = listener == self.settings.protected_listener
        rates = {} if is_protected else {"": self.settings.per_second_max}
        if listener in self.settings.listener_per_second_max:
            rates[listener] = self.settings.listener_per_second_max[listener]
        longest = 0.0
        for name, rate in rates.items():
            due = max(self._turns.get(name, 0.0), now_s - BURST_SECONDS)
            due = min(due, now_s + WAIT_SECONDS_MAX)
            self._turns[name] = due + 1.0 / rate
            longest = max(longest, due - now_s)
        return longest
