"""Shell: whether brokers could work with changed settings: each broker validates them itself.

- A broker knows its file, the keys on its disk and what its topics would inherit. Settings with which it could not
  start must not be committed, so the controller asks the broker of the change, or all live brokers if it is for all.
- For a broker that is down, or does not answer within VALIDATION_MS_MAX, the controller validates with its own file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from broker.config.dynamic import with_changes
from broker.config.loader import BrokerConfig, check_cordoned, check_groups, topic_config
from broker.handlers.configs.tables import why_not_from
from broker.metadata.topic_names import in_force
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import ValidateSettingsRequest
from kafka_ds.protocol.messages.brokers import ValidatedResource, ValidatedSetting

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker
    from broker.metadata.image import MetadataImage

VALIDATION_MS_MAX = 5_000

_LOGGER = logging.getLogger(__name__)

DYNAMIC_THREADS = (
    "log.cleaner.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.reader.threads",
)
# The settings of brokers after the change, by resource name.
Changes = Mapping[str, Mapping[str, str]]


def check_settings(config: BrokerConfig, changes: Changes, image: MetadataImage) -> BrokerConfig:
    """The configuration after the change; ConfigError: invalid, by itself or with the topics' own settings."""
    changed = with_changes(config, changes)
    _check_threads(config, changed)
    check_groups(changed)
    if changed.cordoned_log_dirs != config.cordoned_log_dirs:
        check_cordoned(changed)
    is_inherited_as_before = changed.topic == config.topic
    # Thousands of topics have the same few settings.
    validated: set[frozenset[tuple[str, str]]] = set()
    for topic in image.topics.values():
        own = in_force(topic.name, topic.configs)
        key = frozenset(own.items())
        if key in validated or (is_inherited_as_before and not own):
            continue
        validated.add(key)
        why = None
        try:
            wanted = topic_config(changed, own)
        except ConfigError as error:
            why = str(error)
        else:
            with suppress(ConfigError):  # An old mistake must not prevent its correction.
                why = why_not_from(topic_config(config, own), wanted)
        if why is not None:
            raise ConfigError(f"topic {topic.name} would have {why}")
    return changed


def _check_threads(config: BrokerConfig, changed: BrokerConfig) -> None:
    """As in Kafka, a step is at most to the half or the double."""
    for name in DYNAMIC_THREADS:
        before, after = (int(str(each.value_of(name))) for each in (config, changed))
        if after < before // 2:
            raise ConfigError(f"{name}={after} is less than half of the present value, {before}")
        if after > before * 2:
            raise ConfigError(f"{name}={after} is more than double the present value, {before}")


async def why_not(broker: KafkaBroker, changes: Changes) -> str | None:
    """Why this broker could not work with them."""
    try:
        changed = check_settings(broker.config, changes, broker.metadata)
        await broker.keys.validate(changed)
    except ConfigError as error:
        return str(error)
    return None


async def validate_on_brokers(
    broker: KafkaBroker, changes: Changes, concerned: Iterable[str]
) -> dict[str, str | None]:
    """Why a broker could not work with them, or None, of each that could be asked, by its number.

    `concerned` are the resources that change; the empty name is all brokers.
    """
    names, own = set(concerned), str(broker.config.node_id)
    wanted = [
        str(broker_id)
        for broker_id, registered in broker.metadata.brokers.items()
        if ("" in names or str(broker_id) in names) and not registered.fenced
    ]
    answers = await asyncio.gather(
        *(_validated_by(broker, name, changes) for name in wanted if name != own),
        return_exceptions=True,
    )
    found: dict[str, str | None] = {}
    if own in wanted:
        found[own] = await why_not(broker, changes)
    for name, answer in zip((each for each in wanted if each != own), answers, strict=True):
        if isinstance(answer, ConnectionError | KafkaError | TimeoutError):
            why = str(answer) or type(answer).__name__
            _LOGGER.warning("broker %s could not validate its settings: %s", name, why)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[name] = answer
    return found


async def _validated_by(broker: KafkaBroker, name: str, changes: Changes) -> str | None:
    request = ValidateSettingsRequest(
        resources=[
            ValidatedResource(
                name=each,
                settings=[
                    ValidatedSetting(name=key, value=value)
                    for key, value in changes.get(each, {}).items()
                ],
            )
            for each in ("", name)
        ]
    )
    # Connecting and answering together: each by itself may take as long.
    async with asyncio.timeout(VALIDATION_MS_MAX / 1_000):
        answer = await broker.member.send(int(name), request, timeout_ms=VALIDATION_MS_MAX)
    reason: str | None = answer.error_message
    return (reason or "it says not why") if answer.error_code else None
