"""Shell: what AlterConfigs and IncrementalAlterConfigs share: the rules of settings, the decision, the answer.

A resource changes as a whole or not at all, and is answered once the change is durable and open logs have it. The
declarations of the settings alone decide what may be changed and which values are valid. A broker's answer holds only
for the settings that it was asked about: others may have been set by the time of the decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.config.broker import changeable
from broker.config.client_metrics import ClientMetricsConfig
from broker.config.dynamic import with_changes
from broker.config.group import check_group_config
from broker.config.loader import BrokerConfig, topic_config, topic_settings
from broker.controller.configs import (
    ConfigRules,
    Overrides,
    ResourceAlteration,
    ResourceResult,
)
from broker.handlers.configs.settings_validation import check_settings, validate_on_brokers
from broker.handlers.configs.tables import why_not_from, with_table_kept
from broker.metadata.image import MetadataImage
from broker.registry import RequestContext
from kafka_ds.process.settings import ConfigError, ConfigType, attribute_of, settings_of
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    AlterConfigsResourceResponse,
)

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker

# By broker: the settings that it was asked about and does not refuse, those of all brokers and its own.
Validated: TypeAlias = Mapping[str, tuple[Overrides, Overrides]]
NOBODY: Final[Validated] = MappingProxyType({})


async def alter(
    context: RequestContext, resources: Sequence[ResourceAlteration], *, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Change the settings, or refuse with the reason, resource by resource."""
    broker = context.broker
    left = list(resources)
    refusals, validated = await _validate_on_brokers(broker, left)
    refused_now = refusals
    while refused_now:
        # The others were asked including what is refused: ask again without it.
        left = [each for each in left if _key(each) not in refused_now]
        refused_now, validated = await _validate_on_brokers(broker, left)
        refusals |= refused_now
    rules = rules_of(broker.config, validated)
    results = await broker.metadata_driver.decide(
        lambda c: c.alter_configs(left, rules, validate_only=validate_only)
    )
    by_key = {**refusals, **{_key(result): result for result in results}}
    return [answer(by_key[key]) for key in dict.fromkeys(map(_key, resources))]


def _key(resource: ResourceAlteration | ResourceResult) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


async def _validate_on_brokers(
    broker: KafkaBroker, resources: Sequence[ResourceAlteration]
) -> tuple[dict[tuple[int, str], ResourceResult], Validated]:
    """What the brokers among the resources refuse; and what each was asked about."""
    names = [each.resource_name for each in resources if each.resource_type == BROKER_RESOURCE]
    if not names:
        return {}, {}
    wanted: dict[str, Overrides] = {}

    def look(changes: Mapping[str, Overrides], _: MetadataImage) -> None:
        wanted.update(changes)

    # Other mistakes are found when the change is decided.
    rules = replace(rules_of(broker.config), check_broker=look)
    of_brokers = [each for each in resources if each.resource_type == BROKER_RESOURCE]
    await broker.metadata_driver.decide(
        lambda c: c.alter_configs(of_brokers, rules, validate_only=True)
    )
    found = await validate_on_brokers(broker, wanted, names)
    refusals: dict[tuple[int, str], ResourceResult] = {}
    for name in names:
        reasons = [
            why if broker_id == name else f"broker {broker_id}: {why}"
            for broker_id, why in found.items()
            if why is not None and name in ("", broker_id)
        ]
        if reasons:
            refusals[BROKER_RESOURCE, name] = ResourceResult(
                resource_type=BROKER_RESOURCE,
                resource_name=name,
                error=ErrorCode.INVALID_CONFIG,
                message=reasons[0],
            )
    return refusals, {broker_id: _concerning(wanted, broker_id) for broker_id in found}


def _concerning(changes: Mapping[str, Overrides], broker_id: str) -> tuple[Overrides, Overrides]:
    """The changes that one broker sees: of the default for all brokers, and of its own settings."""
    return dict(changes.get("", {})), dict(changes.get(broker_id, {}))


def answer(result: ResourceResult) -> AlterConfigsResourceResponse:
    """One resource's part of the answer."""
    return AlterConfigsResourceResponse(
        error_code=result.error,
        error_message=result.message,
        resource_type=result.resource_type,
        resource_name=result.resource_name,
    )


def rules_of(config: BrokerConfig, validated: Validated = NOBODY) -> ConfigRules:
    """What a broker with this configuration lets be changed; `validated` are brokers that have answered."""

    def check_topic(before: Overrides, after: Overrides) -> None:
        _check_topic(config, before, after)

    def check_broker(changes: Mapping[str, Overrides], image: MetadataImage) -> None:
        _check_broker(config, changes, image, validated)

    def check_group(own: Overrides) -> None:
        try:
            check_group_config(config, own)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def list_of(resource_type: int, name: str) -> Sequence[str] | None:
        if resource_type == GROUP_RESOURCE:
            return None
        of_subscription = resource_type == CLIENT_METRICS_RESOURCE
        settings = changeable()
        if resource_type == TOPIC_RESOURCE:
            settings = topic_settings()
        elif of_subscription:
            settings = settings_of(ClientMetricsConfig)
        setting = settings.get(name)
        if setting is None or setting.kind is not ConfigType.LIST:
            return None
        inherited = ClientMetricsConfig() if of_subscription else config.topic
        items: Sequence[str] = getattr(inherited, attribute_of(setting.name)) or ()
        return items

    return ConfigRules(
        completed=lambda before, after: _completed(config, before, after),
        check_topic=check_topic,
        check_broker=check_broker,
        check_group=check_group,
        list_of=list_of,
    )


def _completed(config: BrokerConfig, before: Overrides, after: Overrides) -> Overrides:
    try:
        present, wanted = topic_config(config, before), topic_config(config, after)
    except ConfigError:
        return after  # Mistakes are reported when it is checked.
    return with_table_kept(before, after, present, wanted)


def _check_topic(config: BrokerConfig, before: Overrides, after: Overrides) -> None:
    try:
        wanted = topic_config(config, after)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    present = topic_config(config, before)
    becomes_diskless = wanted.lake_diskless and not present.lake_diskless
    if not config.remote_log_storage_system_enable and not becomes_diskless:
        return
    why = why_not_from(present, wanted)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, why)


def _check_broker(
    config: BrokerConfig,
    changes: Mapping[str, Overrides],
    image: MetadataImage,
    validated: Validated,
) -> None:
    """The settings themselves, and that every topic's own still fit them.

    Settings of a broker that could not be asked, or was asked about other values, are validated with this broker's
    file, except those that do not change.
    """
    try:
        for name in changes:
            after = _concerning(changes, name)
            if name and after not in (
                validated.get(name),
                _concerning(image.broker_configs, name),
            ):
                with_changes(replace(config, node_id=int(name)), changes)
        check_settings(config, changes, image)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
