"""`kafka-ds broker`, `restore` and `adopt` as processes."""

import shutil
import sys
from pathlib import Path

from tests.command_line import CommandLine
from tests.processes import BrokerProcess, wait_until


def test_a_broker_is_run_and_its_disks_are_brought_back(tmp_path: Path) -> None:
    settings = {"lake.max.lag.ms": 300, "lake.offsets.interval.ms": 300}
    broker = BrokerProcess(tmp_path / "broker", settings)
    broker.program = (sys.executable, "-m", "broker.cli", "broker")
    broker.start()
    kafka_ds = CommandLine(broker.bootstrap, tmp_path)
    kafka_ds.ok("topic", "create", "orders", "--partitions", "2")
    kafka_ds.ok("produce", "orders", typed="".join(f"{n}\n" for n in range(100)))

    def is_tiered() -> bool:
        (row,) = kafka_ds.json("tier", "status")
        return (row["lag"], row["lake_rows"]) == (0, 100)

    wait_until("the lake to have it all", is_tiered)
    status = kafka_ds.json("cluster", "status")
    assert broker.stop() == 0
    said = broker.log_file.read_text()
    assert f"[node 1] log.dirs: {broker.data}; lake.uri: {broker.lake}" in said
    assert f"in cluster {status['cluster_id']}" in said
    assert "[node 1] tier worker: " in said or "tier worker" in said
    words = broker.command()[len(broker.program) :]
    refused = kafka_ds.run("restore", *words)
    assert refused.complaint.endswith("is not empty: restore needs empty log.dirs")
    shutil.rmtree(broker.data)
    told = kafka_ds.ok("restore", *words)
    assert f"cluster {status['cluster_id']}: broker 1 restored" in told
    broker.start()
    assert len(kafka_ds.records("tail", "orders", "--from", "beginning", "--no-follow")) == 100
    broker.stop()


def test_a_word_that_is_no_file_is_told(tmp_path: Path) -> None:
    kafka_ds = CommandLine(None, tmp_path)
    assert "neither a file nor a subcommand" in kafka_ds.run("broker", "strat").complaint
    assert kafka_ds.run("broker", "restore").complaint.endswith("use kafka-ds restore")
    assert "no such file" in kafka_ds.run("broker", "no.properties").complaint
    told = kafka_ds.run("adopt", "--override", f"log.dirs={tmp_path}", "--dry-run").complaint
    assert "it is not a data directory of Apache Kafka" in told
