"""Read a topic in batches: ``python docs/examples/batch.py 127.0.0.1:9092 orders``."""

import sys

import kafka_ds
from spark_conf.session import session


def main(bootstrap: str, topic: str) -> dict[str, int]:
    spark = session("batch example")  # in a session of your own: kafka_ds.register(spark)
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}

    # One word was changed: format("kafka") became format("kafka_ds").
    rows = spark.read.format("kafka_ds").options(**source).load()
    everything = rows.count()

    # Filters on partition, offset and timestamp prune files, row groups and fetches.
    first = rows.where("partition = 0 AND offset < 10").selectExpr("CAST(value AS STRING) AS value")
    first.show(3)

    # The same rows with the lake's part by Spark's own Delta scan: for aggregates over much.
    scanned = kafka_ds.scan(spark, topic, **{"kafka.bootstrap.servers": bootstrap})
    by_partition = scanned.groupBy("partition").count()
    by_partition.show()

    # Each partition from its tenth record on, up to now; headers as well.
    later = (
        spark.read.format("kafka_ds")
        .options(**source)
        .option("startingTimestamp", 0)
        .option("includeHeaders", True)
        .load()
        .where("offset >= 10")
    )
    return {
        "everything": everything,
        "first": first.count(),
        "scanned": scanned.count(),
        "later": later.count(),
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/examples/batch.py HOST:PORT TOPIC")
    sys.stdout.write(f"{main(*sys.argv[1:])}\n")
