"""Shell: the loggers of this broker as a resource (KIP-412): each is a setting, whose value is its level.

Only the broker itself describes and changes its loggers, so nothing of it goes to the controller. A change holds until
the broker ends, for it and for the processes that it starts from then on. A logger is known once the code that writes
to it is loaded; so are the packages above it. Those of libraries are none of the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.config.describe import ConfigSource, DescribedConfig
from broker.controller.configs import Alteration, ConfigOperation, check_keys
from kafka_ds.process import log_lines
from kafka_ds.process.settings import ConfigType
from kafka_ds.protocol.errors import ErrorCode, KafkaError


def describe_loggers(node_id: int, name: str) -> Sequence[DescribedConfig]:
    """Each logger with its level. Raises KafkaError where the resource is not this broker."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    _check_broker(node_id, name)
    return [
        DescribedConfig(
            name=logger,
            value=level,
            source=ConfigSource.BROKER_LOGGER,
            is_read_only=False,
            is_sensitive=False,
            synonyms=(),
            kind=ConfigType.UNKNOWN,
            documentation="",
        )
        for logger, level in log_lines.levels().items()
    ]


def alter_loggers(
    node_id: int, name: str, alterations: Sequence[Alteration], *, validate_only: bool
) -> None:
    """Change levels, all or none. Raises KafkaError."""
    _check_broker(node_id, name)
    check_keys(alterations)
    for each in alterations:
        _check(each)
    if not validate_only:
        for each in alterations:
            is_set = each.operation == ConfigOperation.SET
            log_lines.set_level(each.name, each.value if is_set else None)


def _check_broker(node_id: int, name: str) -> None:
    if name != str(node_id):
        message = f"Unexpected broker id, expected {node_id} but received {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check(wanted: Alteration) -> None:
    if wanted.operation not in list(ConfigOperation):
        message = f"Unknown operation type {wanted.operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    operation = ConfigOperation(wanted.operation)
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        message = f"{operation.name} operation is not allowed for the BROKER_LOGGER resource"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if wanted.name not in log_lines.levels():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {wanted.name} does not exist!")
    if operation is ConfigOperation.DELETE and wanted.name == log_lines.ROOT:
        message = f"Removing the log level of the {log_lines.ROOT} logger is not allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if operation is ConfigOperation.SET and wanted.value not in log_lines.LEVELS:
        message = (
            f"Cannot set the log level of {wanted.name} to {wanted.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(log_lines.LEVELS)}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
