"""Shell: `kafka_ds.scan(typed=True)`: a topic's typed table and the committed records that it does not have yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import OptionError
from kafka_ds.source.plan.offset_reader import LAKE_SETTING
from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import registry_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE: Final = "lake"
REGISTRY: Final = "schemaRegistry"


def typed_scan(spark: SparkSession, topic: str | None, options: Mapping[str, str]) -> DataFrame:
    """The rows of the typed table at this call, and those of the records that it does not have yet.

    `options` are the client's `kafka.…`, `lake` (default: the brokers' `lake.uri`) and `schemaRegistry` (a URL,
    default: the brokers' `schema.registry.url`). Raises OptionError.
    """
    client = {name: text for name, text in options.items() if name.startswith("kafka.")}
    if unknown := sorted(options.keys() - client.keys() - {LAKE, REGISTRY}):
        raise OptionError(
            f"option '{unknown[0]}': scan(typed=True) takes kafka.…, '{LAKE}' and '{REGISTRY}'"
        )
    if not topic:
        raise OptionError("scan(typed=True) takes the name of one topic")
    lake = options.get(LAKE) or _lake_of_brokers(client)
    pipelines = Pipelines(spark, client, lake, registry_at(options.get(REGISTRY, "")))
    try:
        return pipelines.view(topic)
    finally:
        pipelines.close()


def _lake_of_brokers(client: Mapping[str, str]) -> str:
    with Cluster(parse_settings(dict(client))) as cluster:
        lake = cluster.broker_setting(LAKE_SETTING)
    if not lake:
        raise OptionError(f"the brokers have no {LAKE_SETTING}, so there are no typed tables")
    return lake
