"""Pure: parses the `kafka.*` options, which are the settings of Kafka's consumer.

Each setting is declared once, with Kafka's default. A setting that is not supported is an error that names it.
Settings of features that do not exist here (groups, metrics, polling) cannot change a row, and are accepted: so a job
switches from Spark's own source by changing one word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kafka_ds.client.security import PREFIXES, ClientSecurity, parse_security
from kafka_ds.errors import OptionError

PREFIX: Final = "kafka."
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
INT32_MAX: Final = 2**31 - 1

# There are no consumer groups, metrics and polls here. Besides: fetches always go to the leader, checksums are always
# validated, and reconnects wait for retry.backoff.ms.
_WITHOUT_EFFECT: Final = re.compile(
    r"group\.(id|instance\.id|protocol|remote\.assignor)|session\.timeout\.ms|heartbeat\.interval\.ms"
    r"|max\.poll\.(records|interval\.ms)|partition\.assignment\.strategy|auto\.commit\.interval\.ms"
    r"|metric\.reporters|metrics\..*|enable\.metrics\.push|auto\.include\.jmx\.reporter"
    r"|exclude\.internal\.topics|allow\.auto\.create\.topics|client\.dns\.lookup|metadata\.max\.age\.ms"
    r"|client\.rack|metadata\.recovery\..*|check\.crcs|reconnect\.backoff(\.max)?\.ms"
)
REFUSED: Final = {
    "auto.offset.reset": "say where to start with 'startingOffsets'; the source keeps its own offsets",
    "key.deserializer": "keys are read as bytes; decode them with DataFrame operations",
    "value.deserializer": "values are read as bytes; decode them with DataFrame operations",
    "enable.auto.commit": "the source keeps its own offsets and commits none",
    "interceptor.classes": "an interceptor could change the rows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The client's settings, with Kafka's names; the defaults are Kafka's except where a comment gives a reason."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "kafka-ds"
    isolation_level: str = READ_COMMITTED
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 * 1024 * 1024
    # Kafka: 500 ms, for consumers that wait for new records. The source fetches only offsets that exist, so it waits
    # only if the last offsets of a range were compacted away.
    fetch_max_wait_ms: int = 10
    # Kafka: 1 MiB, for consumers of many partitions. A task reads one partition at a time.
    max_partition_fetch_bytes: int = 4 * 1024 * 1024
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    receive_buffer_bytes: int = -1
    send_buffer_bytes: int = -1
    # Below the brokers' 600 s, so that the client closes an idle connection. -1: never.
    connections_max_idle_ms: int = 540_000
    security: ClientSecurity = field(default_factory=ClientSecurity)

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted and open transactions are left out."""
        return self.isolation_level == READ_COMMITTED


# The integers: field → (lowest, highest).
_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "fetch_min_bytes": (0, INT32_MAX),
    "fetch_max_bytes": (0, INT32_MAX),
    "fetch_max_wait_ms": (0, INT32_MAX),
    "max_partition_fetch_bytes": (0, INT32_MAX),
    "request_timeout_ms": (1, INT32_MAX),
    "default_api_timeout_ms": (1, INT32_MAX),
    "retry_backoff_ms": (0, INT32_MAX),
    "retry_backoff_max_ms": (0, INT32_MAX),
    "socket_connection_setup_timeout_ms": (1, INT32_MAX),
    "receive_buffer_bytes": (-1, INT32_MAX),
    "send_buffer_bytes": (-1, INT32_MAX),
    "connections_max_idle_ms": (-1, INT32_MAX),
}


def option_name(field: str) -> str:
    """The option that sets a field: ``fetch_max_wait_ms`` is ``kafka.fetch.max.wait.ms``."""
    return PREFIX + field.replace("_", ".")


def parse_settings(options: Mapping[str, str]) -> ClientSettings:
    """Parse the options that begin with ``kafka.``.

    Raises:
        OptionError: an option is unknown, has a wrong type, is out of bounds, or is not supported.
    """
    given = {
        name.lower().removeprefix(PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    values: dict[str, object] = {}
    for name, value in given.items():
        if name.startswith(PREFIXES):
            continue
        if name in REFUSED:
            raise OptionError(f"option 'kafka.{name}' is not supported: {REFUSED[name]}")
        if not _WITHOUT_EFFECT.fullmatch(name):
            field = name.replace(".", "_")
            values[field] = _parse(field, value)
    if "bootstrap_servers" not in values:
        raise OptionError("option 'kafka.bootstrap.servers' must be given")
    security = parse_security(given)
    return ClientSettings(**values, security=security)  # type: ignore[arg-type]


def _parse(field: str, value: str) -> object:
    name, text = option_name(field), value.strip()
    if field == "bootstrap_servers":
        return parse_servers(text)
    if field == "isolation_level":
        if text.lower() not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise OptionError(
                f"option '{name}' is {value!r}; it must be {READ_COMMITTED} or {READ_UNCOMMITTED}"
            )
        return text.lower()
    if field == "client_id":
        return text
    if field not in _NUMBERS:
        raise OptionError(f"option '{name}' is not a setting of a Kafka consumer")
    return parse_number(name, value, *_NUMBERS[field])


def parse_number(option: str, text: str, low: int, high: int) -> int:
    """Parse an integer.

    Raises:
        OptionError: it is not an integer between ``low`` and ``high``; the message names the option.
    """
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"option '{option}' is {text!r}; it must be an integer") from None
    if not low <= number <= high:
        raise OptionError(f"option '{option}' is {number}; it must be between {low} and {high}")
    return number


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """``host:port,[::1]:9092`` as pairs.

    Raises:
        OptionError: a server without a port, or no server at all.
    """
    found: list[tuple[str, int]] = []
    for server in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = server.removeprefix("PLAINTEXT://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(
                f"option 'kafka.bootstrap.servers' has {server!r}, which is not host:port"
            )
        found.append((host, int(port)))
    if not found:
        raise OptionError("option 'kafka.bootstrap.servers' names no server")
    return tuple(found)
