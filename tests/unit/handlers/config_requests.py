"""What tests ask of a broker's settings."""

from typing import Any

from kafka_ds.protocol.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka_ds.protocol.messages.configs import (
    DescribeConfigsResource,
    IncrementalAlterConfigsResource,
)
from tests.in_process import InProcess
from tests.requests import build

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
OF_CLIENT_METRICS, OF_GROUP = 7, 8

Change = tuple[str, int, str | None]


def resource(kind: int, name: str, *changes: Change) -> IncrementalAlterConfigsResource:
    return build(
        IncrementalAlterConfigsResource,
        resource_type=kind,
        resource_name=name,
        configs=[
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ],
    )


async def change(
    broker: InProcess, kind: int, name: str, *changes: Change, only: bool = False, version: int = 1
) -> Any:
    request = IncrementalAlterConfigsRequest(
        resources=[resource(kind, name, *changes)], validate_only=only
    )
    (answer,) = (await broker.ask(request, version)).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


async def replace(broker: InProcess, name: str, version: int = 2, **configs: str) -> Any:
    request = build(
        AlterConfigsRequest,
        resource_type=TOPIC,
        resource_name=name,
        configs=[{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        validate_only=False,
    )
    (answer,) = (await broker.ask(request, version)).responses
    return answer


async def described(broker: InProcess, kind: int, name: str, key: str) -> Any:
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True)
    (result,) = (await broker.ask(request, 4)).results
    (config,) = result.configs
    return config


def log_of(broker: InProcess, topic: str) -> Any:
    return broker.node.replica_manager.get(topic, 0).log
