"""Runs the demo: a broker, real data through it, the lake, Spark, a second engine, and consumers of old offsets.

Usage: ``python -m tests.demo [--flights N] [--folder .demo]``. Everything lies in the folder, which is emptied first.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from pathlib import Path

from tests.demo import clients, show
from tests.demo.flights import FLIGHTS, flights
from tests.processes import BrokerProcess, wait_until

DESCRIPTION = (
    "One record's whole way: a broker, real data through it, the lake, Spark, a second engine, and consumers of old "
    "offsets."
)
MARKER = ".kafka-ds-demo"
SETTINGS = {
    # Sooner than in production, so that there is something to see within a minute.
    "lake.local.grace.ms": 1000,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 1000,
    "remote.log.manager.task.interval.ms": 1000,
}


def empty_folder(folder: Path) -> None:
    """Ours or new: a folder that the demo did not make is never emptied."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        sys.exit(f"demo: {folder} is not empty and not the demo's; name another with --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def rows_in_lake(lake: Path) -> list[int]:
    """Rows of the topic's table by partition, read by delta-rs alone."""
    import pyarrow as pa
    from deltalake import DeltaTable

    counts = [0] * clients.PARTITIONS
    if not (lake / "topics" / clients.TOPIC / "_delta_log").exists():
        return counts
    actions = pa.table(DeltaTable(lake / "topics" / clients.TOPIC).get_add_actions(flatten=True))
    for partition, rows in zip(
        actions.column("partition.partition").to_pylist(),
        actions.column("num_records").to_pylist(),
        strict=True,
    ):
        counts[int(partition)] += rows
    return counts


def produce(broker: BrokerProcess, count: int) -> clients.Acknowledged:
    show.heading(2, "librdkafka produces the flights of 2013, acks=all, idempotent")
    clients.create_topic(broker.bootstrap)
    progress = show.Progress(count, "flights")
    seen = 0.0

    note = ""

    def tell(done: int) -> None:
        nonlocal seen, note
        if time.monotonic() - seen > 0.5:
            seen = time.monotonic()
            note = f"{sum(rows_in_lake(broker.lake)):,} of them in the Delta table"
        progress.update(done, note)

    acknowledged = clients.produce(broker.bootstrap, itertools.islice(flights(), count), tell)
    total = sum(len(done) for done in acknowledged)
    progress.update(
        total, f"{sum(rows_in_lake(broker.lake)):,} of them in the Delta table", last=True
    )
    if total != count:
        raise RuntimeError(f"{total} of {count} were acknowledged")
    return acknowledged


def wait_for_tiering(broker: BrokerProcess) -> list[int]:
    show.heading(3, "closed segments are in the Delta table lake/topics/flights")
    counts: list[int] = []

    def settled() -> bool:
        nonlocal counts
        previous, counts = counts, rows_in_lake(broker.lake)
        return counts == previous and sum(counts) > 0

    wait_until("the closed segments to be tiered", settled, every_s=1.5)
    files = len(list((broker.lake / "topics" / clients.TOPIC).glob("partition=*/*.parquet")))
    show.fact(
        f"{sum(counts):,} rows in {files} Parquet files; the rest is hot, in the open segments"
    )
    return counts


def spark_part(broker: BrokerProcess, acknowledged: clients.Acknowledged) -> None:
    from spark_conf.session import session
    from tests.demo import spark as sparkling

    show.heading(
        4, 'Spark reads format("kafka_ds"): cold from Delta, hot from the broker, one scan'
    )
    spark = session("kafka-ds demo")
    try:
        counts = [len(done) for done in acknowledged]
        sparkling.exactly_once(spark, broker.bootstrap, counts)
        sparkling.delays_by_carrier(spark, broker.bootstrap)
        show.heading(5, "readStream agrees with the batch read")
        checkpoints = broker.folder / "checkpoints"
        sparkling.stream_available_now(spark, broker.bootstrap, checkpoints, sum(counts))
        sparkling.stream_running(spark, broker.bootstrap, checkpoints, sum(counts))
        show.heading(6, "a typed table, lake/tables/flights: the fields of the JSON as columns")
        sparkling.typed_table(spark, broker.bootstrap, broker.lake, sum(counts))
        show.heading(7, "SQL over __remote_log_metadata")
        sparkling.segments(spark, broker.lake)
    finally:
        spark.stop()


def second_engine(
    broker: BrokerProcess, tiered: list[int], acknowledged: clients.Acknowledged
) -> None:
    import polars as pl

    show.heading(8, "the broker is stopped; Polars opens the same table")
    if broker.stop() != 0:
        raise RuntimeError("the broker did not stop cleanly")
    frame = (
        pl.scan_delta(str(broker.lake / "topics" / clients.TOPIC))
        .select("partition", "offset", "key", "value")
        .sort("partition", "offset")
        .collect()
    )
    for partition, group in frame.group_by("partition"):
        done = acknowledged[partition[0]]
        rows = list(zip(group["offset"], group["key"], group["value"], strict=True))
        expected = [(i, r.key, r.value) for i, r in enumerate(done[: tiered[partition[0]]])]
        if rows != expected:
            raise RuntimeError(
                f"partition {partition[0]}: Polars sees other rows than were produced"
            )
    if len(frame) != sum(tiered):
        raise RuntimeError(f"Polars sees {len(frame)} rows, the table had {sum(tiered)}")
    show.fact(f"{len(frame):,} rows, byte for byte what was produced below the tiered end")


def old_offsets(broker: BrokerProcess, acknowledged: clients.Acknowledged) -> None:
    show.heading(
        9, "consumers read from the beginning; the tiered segments are gone from the broker's disk"
    )
    began = time.monotonic()
    broker.start()
    show.fact(f"broker started again in {time.monotonic() - began:.2f} s")

    def local_bytes() -> int:
        return sum(p.stat().st_size for p in broker.data.glob(f"{clients.TOPIC}-*/*.log"))

    limit = clients.PARTITIONS * 2 * (1 << 20)
    wait_until("local copies of tiered segments to be deleted", lambda: local_bytes() < limit)
    show.fact(f"{local_bytes() / 1e6:.1f} MB of log are left on the broker's disk")
    for name, read in (
        ("librdkafka", clients.read_with_librdkafka),
        ("kafka-python", clients.read_with_kafka_python),
    ):
        began = time.monotonic()
        count = read(broker.bootstrap, acknowledged)
        show.fact(
            f"{name}: {count:,} records in {time.monotonic() - began:.1f} s; key, value, headers and timestamp "
            "are exactly what was produced"
        )
        if count != sum(len(done) for done in acknowledged):
            raise RuntimeError(f"{name} read {count} records")


def how_to_go_on(folder: Path) -> None:
    print(
        f"""
How to go on:
  start the broker     .venv/bin/python -m broker --override log.dirs={folder}/log --override lake.uri={folder}/lake
  point a client at it bootstrap.servers=127.0.0.1:9092, topic {clients.TOPIC}
  read it in Spark     spark.read.format("kafka_ds").option("kafka.bootstrap.servers", "127.0.0.1:9092")
                           .option("subscribe", "{clients.TOPIC}").load()
  open the table       polars.scan_delta("{folder}/lake/topics/{clients.TOPIC}")   (no broker needed)
"""
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=DESCRIPTION)
    parser.add_argument(
        "--flights", type=int, default=FLIGHTS, help=f"how many (default {FLIGHTS:,})"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(".demo"),
        help="where all of it lies; emptied first if it is the demo's (default %(default)s)",
    )
    options = parser.parse_args()
    began = time.monotonic()
    empty_folder(options.folder)
    show.heading(1, "a broker starts: data and lake in a local folder, no other service")
    broker = BrokerProcess(options.folder.resolve(), SETTINGS)
    starting = time.monotonic()
    broker.start()
    try:
        show.fact(f"ready on {broker.bootstrap} after {time.monotonic() - starting:.2f} s")
        acknowledged = produce(broker, min(options.flights, FLIGHTS))
        wait_for_tiering(broker)
        spark_part(broker, acknowledged)
        second_engine(broker, rows_in_lake(broker.lake), acknowledged)
        old_offsets(broker, acknowledged)
    finally:
        broker.stop()
    show.fact(f"\n   done in {time.monotonic() - began:.0f} s")
    how_to_go_on(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
