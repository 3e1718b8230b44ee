"""A session that asks for a few rows in many ways: ``terminal_driver.py <brokers> <topic>``."""

from __future__ import annotations

import sys

from spark_conf.session import session
from tests.spark.java import QUICK_JAVA


def main() -> None:
    brokers, topic = sys.argv[1:]
    spark = session(
        "terminal", master="local[1]", settings={"spark.driver.defaultJavaOptions": QUICK_JAVA}
    )
    rows = (
        spark.read.format("kafka_ds")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", topic)
        .load()
    )
    for _ in range(2):
        rows.show(3)
        assert len(rows.take(2)) == 2
        assert len(rows.limit(2).collect()) == 2
        assert not rows.isEmpty()
        assert rows.head() is not None
        assert len(rows.where("offset > 3").select("value").take(2)) == 2
        assert rows.limit(45).count() == 45
    print("done", file=sys.stderr)


if __name__ == "__main__":
    main()
