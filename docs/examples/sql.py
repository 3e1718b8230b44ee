"""Topics by their names in plain SQL: ``python docs/examples/sql.py 127.0.0.1:9092 orders``."""

import sys

from spark_conf.catalog import topic_catalog
from spark_conf.session import session


def main(bootstrap: str, topic: str) -> dict[str, int]:
    spark = session("SQL example")
    topic_catalog(spark, bootstrap)
    spark.sql("SHOW TABLES IN kafka").show()
    rows = spark.sql(
        f"SELECT count(*) AS n, max(offset) AS last FROM kafka.`{topic}` WHERE offset >= 10"  # noqa: S608
    )
    found = rows.collect()[0]
    return {"rows": found["n"], "last": found["last"]}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/examples/sql.py HOST:PORT TOPIC")
    sys.stdout.write(f"{main(*sys.argv[1:])}\n")
