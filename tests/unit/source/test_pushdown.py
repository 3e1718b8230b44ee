"""Who plans a query with filters: the optimizer's rule alone, since Spark's own push-down comes before it."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from kafka_ds.errors import NoSuchHost
from kafka_ds.source.batch import PushingKafkaBatchReader
from kafka_ds.source.datasource import PushingKafkaDataSource
from kafka_ds.source.session.optimizer import CLASS_NAME

# A host that does not exist: what plans, fails.
OPTIONS = {
    "kafka.bootstrap.servers": "nobody.invalid:1",
    "kafka.default.api.timeout.ms": "1",
    "fetchOffset.numRetries": "0",
    "subscribe": "t",
}


def reader(**metadata: bool) -> DataSourceReader:
    column = StructField("offset", LongType(), True, dict(metadata))
    return PushingKafkaDataSource(OPTIONS).reader(StructType([column]))


def test_sparks_own_push_down_plans_nothing() -> None:
    first = reader()
    assert list(first.pushFilters([EqualTo(("offset",), 5)])) == []
    (partition,) = first.partitions()
    with pytest.raises(RuntimeError, match=r"spark\.sql\.optimizer\.excludedRules"):
        first.read(partition)


def test_the_rule_has_a_query_with_filters_planned() -> None:
    rules = reader(**{CLASS_NAME: True})
    assert list(rules.pushFilters([EqualTo(("offset",), 5)])) == []
    with pytest.raises(NoSuchHost, match=r"nobody\.invalid"):
        rules.partitions()


def test_a_query_without_filters_is_planned_when_it_runs() -> None:
    with pytest.raises(NoSuchHost, match=r"nobody\.invalid"):
        reader().partitions()


def test_filters_of_a_users_schema_are_not_the_rules() -> None:
    users = reader(comment=True)
    assert isinstance(users, PushingKafkaBatchReader)
    users.pushFilters([])
    assert users.partitions()[0].value is None and type(users.partitions()[0]) is not InputPartition
