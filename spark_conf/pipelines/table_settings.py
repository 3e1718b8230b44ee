"""Shell: what a topic's settings say of its typed table."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_ds.client.admin import TopicDescription
from kafka_ds.topic.names import ERRORS
from spark_conf.pipelines import history
from spark_conf.pipelines.history import HistoryPolicy, policy_of
from spark_conf.pipelines.partitions import PARTITION_COLUMNS
from spark_conf.pipelines.typed_table import APPEND, CURRENT

LOGGER = logging.getLogger("kafka_ds.pipelines")
VALUE_FORMAT: Final = "lake.table.value.format"
KEY_FORMAT: Final = "lake.table.key.format"
CLUSTER_COLUMNS: Final = "lake.table.cluster.columns"
COLUMNS: Final = "lake.table.columns"
MODE: Final = "lake.table.mode"
ENVELOPE: Final = "lake.table.envelope"
RETENTION: Final = "lake.table.retention.enable"
SETTINGS: Final = (
    VALUE_FORMAT,
    KEY_FORMAT,
    MODE,
    PARTITION_COLUMNS,
    CLUSTER_COLUMNS,
    COLUMNS,
    RETENTION,
    ENVELOPE,
    *history.SETTINGS,
)
NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """A topic with a typed table, and the settings of the table."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]
    value_format: str
    key_format: str
    mode: str
    envelope: str
    partition_columns: tuple[str, ...]
    cluster_columns: tuple[str, ...]
    columns: tuple[str, ...]
    """Paths of JSON fields with the types of their columns."""
    expires: bool
    """Whether the topic's retention applies to the table."""
    history: HistoryPolicy | None
    """When overtaken rows leave the topic's own table; None if they stay."""


def table_settings(
    topic: TopicDescription, settings: Mapping[str, str | None]
) -> TableSettings | None:
    """The settings of a topic's typed table; None if it is to have none."""
    value_format = settings.get(VALUE_FORMAT) or NONE
    if value_format == NONE:
        return None
    if topic.name.endswith(ERRORS):
        LOGGER.warning(
            "%s: no table is made of a topic whose name ends with %s", topic.name, ERRORS
        )
        return None
    return TableSettings(
        topic=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(each.partition for each in topic.partitions),
        value_format=value_format,
        key_format=settings.get(KEY_FORMAT) or NONE,
        mode=settings.get(MODE) or APPEND,
        envelope=settings.get(ENVELOPE) or NONE,
        partition_columns=_listed(settings.get(PARTITION_COLUMNS)),
        cluster_columns=_listed(settings.get(CLUSTER_COLUMNS)),
        columns=_listed(settings.get(COLUMNS)),
        expires=settings.get(RETENTION) != "false",
        history=policy_of(settings) if settings.get(MODE) == CURRENT else None,
    )


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))
