"""Shell: what AlterConfigs and IncrementalAlterConfigs share: the rules of settings, the decision, the answer.

Rules of this file: a resource changes as a whole or not at all, and is answered once the change is durable and open
logs have it. What may be changed and how it looks is said by the declarations of the settings alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.cluster.administration import (
    ConfigRules,
    Overrides,
    ResourceAlteration,
    ResourceResult,
)
from broker.cluster.events import GROUP_RESOURCE, TOPIC_RESOURCE
from broker.cluster.image import MetadataImage
from broker.config.dynamic import changeable, with_changes
from broker.config.group import check_group_config
from broker.config.loading import BrokerConfig, topic_config, topic_settings
from broker.config.settings import ConfigError, Kind, attribute_of
from broker.registry import RequestContext
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages.configs import AlterConfigsResourceResponse


async def alter(
    context: RequestContext, resources: Sequence[ResourceAlteration], *, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Change the settings, or say why not, resource by resource."""
    node = context.node
    results = await node.controller.decide(
        lambda c: c.alter_configs(resources, rules_of(node.config), validate_only=validate_only)
    )
    return [answer(result) for result in results]


def answer(result: ResourceResult) -> AlterConfigsResourceResponse:
    """One resource's part of the answer."""
    return AlterConfigsResourceResponse(
        error_code=result.error,
        error_message=result.message,
        resource_type=result.resource_type,
        resource_name=result.resource_name,
    )


def refused(
    resources: Sequence[tuple[int, str]], code: ErrorCode, message: str | None
) -> list[AlterConfigsResourceResponse]:
    """The same error for every resource."""
    return [
        answer(ResourceResult(resource_type=kind, resource_name=name, error=code, message=message))
        for kind, name in dict.fromkeys(resources)
    ]


def rules_of(config: BrokerConfig) -> ConfigRules:
    """What a broker with this configuration lets be changed."""

    def check_topic(before: Overrides, after: Overrides) -> None:
        _check_topic(config, before, after)

    def check_broker(changes: Mapping[str, Overrides], image: MetadataImage) -> None:
        _check_broker(config, changes, image)

    def check_group(own: Overrides) -> None:
        try:
            check_group_config(config, own)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def list_of(resource_type: int, name: str) -> Sequence[str] | None:
        if resource_type == GROUP_RESOURCE:
            return None
        settings = topic_settings() if resource_type == TOPIC_RESOURCE else changeable()
        setting = settings.get(name)
        if setting is None or setting.kind is not Kind.LIST:
            return None
        items: Sequence[str] = getattr(config.topic, attribute_of(setting.name)) or ()
        return items

    return ConfigRules(
        check_topic=check_topic,
        check_broker=check_broker,
        check_group=check_group,
        list_of=list_of,
    )


def _check_topic(config: BrokerConfig, before: Overrides, after: Overrides) -> None:
    try:
        wanted = topic_config(config, after)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if wanted.has_table or not config.remote_log_storage_system_enable:
        return
    if not topic_config(config, before).has_table:
        return
    if "compact" in wanted.cleanup_policy:
        message = (
            f"cleanup.policy={after.get('cleanup.policy', '')}: a topic that is a Delta table, or was, "
            "cannot be compacted, for what is in the table may be nowhere else"
        )
    else:
        message = (
            f"remote.storage.enable={after.get('remote.storage.enable', '')}: what is in the table may be nowhere "
            "else. To keep it and copy no more: remote.storage.enable=true, remote.log.copy.disable=true. To have it "
            "deleted: remote.storage.enable=false, remote.log.delete.on.disable=true, which stay together"
        )
    raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _check_broker(
    config: BrokerConfig, changes: Mapping[str, Overrides], image: MetadataImage
) -> None:
    """The settings themselves, and that every topic's own still fit them.

    Those of another broker are judged as if it had this one's file: its own is not known here.
    """
    try:
        for name in changes:
            if name:
                with_changes(replace(config, node_id=int(name)), changes)
        changed = with_changes(config, changes)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    for topic in image.topics.values():
        try:
            if topic.configs:
                topic_config(changed, topic.configs)
        except ConfigError as error:
            message = f"topic {topic.name} would have {error}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message) from None
