"""What several tests use: source."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "tiers": "remote"}


def source(spark: SparkSession, **options: object) -> DataFrame:
    return spark.read.format("kafka_ds").options(**options).load()  # type: ignore[arg-type]
