"""Copy a topic into a folder of Parquet, exactly once: ``python docs/examples/stream.py 127.0.0.1:9092 orders out``.

Run it again: it goes on where it was. A checkpoint of Spark's own Kafka source is gone on from, too.
"""

import json
import sys

import kafka_ds
from spark_conf.session import session


def main(bootstrap: str, topic: str, folder: str) -> dict[str, float]:
    spark = session("stream example")
    rows = (
        spark.readStream.format("kafka_ds")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        # Spark hands no filters to a stream of Python: this does, down to files and fetches.
        .option("where", "partition IN (0, 1)")
        .option("columns", "key,value,partition,offset")
        .load()
    )
    query = (
        rows.writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    lag = (
        kafka_ds.offsets_behind_latest(json.loads(progress.json)["sources"][0]) if progress else {}
    )
    return {"copied": spark.read.parquet(f"{folder}/rows").count(), **lag}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python docs/examples/stream.py HOST:PORT TOPIC FOLDER")
    sys.stdout.write(f"{main(*sys.argv[1:])}\n")
