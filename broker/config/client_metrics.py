"""Pure: the settings of a subscription of client metrics (KIP-714): what clients push, how often, and which clients.

Errors are Kafka's: INVALID_REQUEST for an unknown setting and an interval out of bounds, INVALID_CONFIG for the rest. A
subscription without settings does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.patterns import matcher
from kafka_ds.process.settings import ConfigError, attribute_of, i32, settings_of, strings
from kafka_ds.protocol.errors import ErrorCode, KafkaError

ALL_METRICS = "*"
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
# What `match` may compare.
CLIENT_ATTRIBUTES = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """One subscription."""

    metrics: tuple[str, ...] = strings(
        (), "Beginnings of the names of metrics that clients push; * means all."
    )
    interval_ms: int = i32(
        300_000,
        "How often clients push: 100 ms to an hour. As in Kafka the default bounds it: more has no effect.",
    )
    match: tuple[str, ...] = strings(
        (),
        "Which clients push: name=expression for some of "
        f"{', '.join(CLIENT_ATTRIBUTES)}. All must match; an empty list matches every client.",
    )


def client_metrics_config(name: str, own: Mapping[str, str]) -> ClientMetricsConfig:
    """The subscription of this name with these settings. Raises KafkaError naming a wrong one."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    settings = settings_of(ClientMetricsConfig)
    for unknown in own.keys() - settings.keys():
        message = f"Unknown client metrics configuration: {unknown}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    try:
        values: dict[str, Any] = {
            attribute_of(key): settings[key].parse(text) for key, text in own.items()
        }
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    config = ClientMetricsConfig(**values)
    if not INTERVAL_MS_MIN <= config.interval_ms <= INTERVAL_MS_MAX:
        message = (
            f"Invalid value {config.interval_ms} for interval.ms, interval must be between "
            f"{INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    matchers(config)
    return config


def matchers(config: ClientMetricsConfig) -> dict[str, Callable[[str], bool]]:
    """By attribute, whether a client's value matches. Raises KafkaError(INVALID_CONFIG)."""
    found = {}
    for text in config.match:
        # As Java splits it: what is after the second sign is not part of the expression, but an error.
        name, *values = text.rstrip("=").split("=")
        name = name.strip()
        try:
            if name not in CLIENT_ATTRIBUTES or len(values) != 1:
                raise KafkaError(ErrorCode.INVALID_CONFIG)
            found[name] = matcher(values[0].strip())
        except KafkaError:
            message = f"Illegal client matching pattern: {text}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message) from None
    return found
