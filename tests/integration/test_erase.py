"""`kafka-ds erase` on real brokers: no file holds the key any more, and nothing else is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, write_deltalake

from broker.cli.main import program
from broker.erasure import erase as erasure
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.typed_steps import TableStep
from tests.command_line import CommandLine, Done
from tests.processes import BrokerProcess, cluster, running_broker, wait_until
from tests.s3_server import S3Server, address_for

QUICKLY = {
    "lake.local.grace.ms": 0,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
}
TIERED = {**QUICKLY, "remote.log.storage.system.enable": "true"}
WORDS = ("erase", "--topic", "orders", "--key", "ada")
SECRET = b"secret of ada"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path, QUICKLY) as running:
        yield running


@pytest.fixture
def kafka_ds(broker: BrokerProcess, tmp_path: Path) -> CommandLine:
    return CommandLine(broker.bootstrap, tmp_path)


def produce(kafka_ds: CommandLine, partition: int, *keys: str) -> None:
    lines = "".join(f"{key}:secret of {key}\n" for key in keys)
    words = ("--partition", str(partition), "--key-separator", ":")
    kafka_ds.ok("produce", "orders", *words, typed=lines)


def keys_of(kafka_ds: CommandLine) -> list[str]:
    found = kafka_ds.ok("tail", "orders", "--from", "beginning", "--no-follow", "--json")
    return sorted(json.loads(line)["key"] for line in found.splitlines())


def settings_of(kafka_ds: CommandLine) -> dict[str, str]:
    return dict(kafka_ds.json("topic", "describe", "orders")["configs"])


def holding(folder: Path) -> list[str]:
    """The files below a folder that hold the secret: of Parquet its rows, of others the bytes, which are not packed."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if ".parquet" in path.name:
            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
            data = repr(rows).encode()
        if SECRET in data:
            found.append(str(path.relative_to(folder)))
    return found


def place(done: Done, what: str) -> dict[str, Any]:
    (row,) = (each for each in json.loads(done.output)["places"] if each["what"] == what)
    return dict(row)


def test_a_key_leaves_three_partitions(broker: BrokerProcess, kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "orders", "--partitions", "3", "--config", "segment.ms=500")
    for partition in range(3):
        produce(kafka_ds, partition, "ada", "ben", "ada", "cho")
    table = broker.lake / "topics" / "orders"
    wait_until("the table", lambda: DeltaTable.is_deltatable(str(table)))
    produce(kafka_ds, 1, "ada", "ben")
    before = settings_of(kafka_ds)

    done = kafka_ds.run(*WORDS, "--dry-run")
    assert (done.status, keys_of(kafka_ds).count("ada")) == (1, 7)
    assert done.errors.endswith("nothing was changed: run it again without --dry-run\n")
    assert holding(broker.folder)

    done = kafka_ds.run(*WORDS, "--json")
    assert done.status == 0, done.errors
    assert "topics/orders: 7 rows deleted" in done.errors
    said = json.loads(done.output)
    assert (said["proven"], said["not_searched"]) == (True, [])
    assert place(done, "rows")["found"] == 7
    assert {each["left"] for each in said["places"]} == {0}
    assert keys_of(kafka_ds) == ["ben"] * 4 + ["cho"] * 3
    assert holding(broker.folder) == []
    assert settings_of(kafka_ds) == before
    assert list((broker.lake / "_erasures").iterdir()) == []

    assert kafka_ds.run(*WORDS, "--dry-run").status == 0
    assert len(keys_of(kafka_ds)) == 7
    # deltalake has written these anew.
    done = kafka_ds.run(*WORDS[:-1], "ben", "--json")
    assert (done.status, place(done, "rows")["found"]) == (0, 4), done.errors
    assert keys_of(kafka_ds) == ["cho"] * 3


def test_what_was_killed_is_finished(broker: BrokerProcess, kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "orders", "--config", "local.retention.ms=7000")
    produce(kafka_ds, 0, "ada", "ben")
    before = settings_of(kafka_ds)
    with kafka_ds.popen(*WORDS) as running:
        assert running.stderr is not None
        assert any("row deleted" in each or "rows deleted" in each for each in running.stderr)
        running.kill()
    assert settings_of(kafka_ds) != before
    done = kafka_ds.run(*WORDS, "--dry-run")
    told = "if that was killed, run this again without --dry-run to finish it"
    assert (done.status, told in done.errors) == (1, True)

    done = kafka_ds.run(*WORDS)
    assert done.status == 0, done.errors
    assert settings_of(kafka_ds) == before
    assert keys_of(kafka_ds) == ["ben"]
    assert holding(broker.folder) == []


def test_typed_tables_errors_and_aborted_records(
    broker: BrokerProcess, kafka_ds: CommandLine
) -> None:
    """In a typed table the key may be spelled otherwise, the errors have none: rows are known by their places."""
    kafka_ds.ok("topic", "create", "orders")
    produce(kafka_ds, 0, "ada", "ben", "ada")
    aborting = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "compression.type": "none"}
    )
    aborting.init_transactions()
    aborting.begin_transaction()
    aborting.produce("orders", key=b"ada", value=SECRET)
    aborting.produce("orders", key=b"cho", value=b"secret of cho")
    aborting.flush()
    aborting.abort_transaction()
    produce(kafka_ds, 0, "cho")
    typed, errors = broker.lake / "tables" / "orders", broker.lake / "tables" / "orders__errors"
    rows = pa.table(
        {
            "_partition": pa.array([0, 0, 0], pa.int32()),
            "_offset": pa.array([0, 1, 2], pa.int64()),
            "_key": [b'{"name": "ada"}', b'{"name": "ben"}', b'{"name": "ada"}'],
            "text": [SECRET.decode(), "b", SECRET.decode()],
        }
    )
    write_deltalake(str(typed), rows, configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(str(errors), rows.slice(1).drop_columns(["_key"]))

    done = kafka_ds.run(*WORDS, "--json")
    assert done.status == 0, done.errors
    assert place(done, "residue")["found"] == 1
    assert DeltaTable(str(typed)).to_pyarrow_table()["_offset"].to_pylist() == [1]
    assert DeltaTable(str(errors)).to_pyarrow_table()["_offset"].to_pylist() == [1]
    logs = [f"tables/{each.name}/_delta_log" for each in (typed, errors)]
    assert [each for each in holding(broker.lake) if not each.startswith(tuple(logs))] == []
    assert holding(broker.data) == []
    assert keys_of(kafka_ds) == ["ben", "cho"]
    words = ("tail", "orders", "--from", "beginning", "--no-follow", "--json")
    seen = kafka_ds.ok(*words, "--isolation", "read_uncommitted").splitlines()
    assert [json.loads(each)["key"] for each in seen] == ["ben", "cho", "cho"]


def test_what_the_tables_log_says_is_told(broker: BrokerProcess, kafka_ds: CommandLine) -> None:
    """Of a DELETE by key, and of statistics: these go when the log is cleaned up."""
    kafka_ds.ok("topic", "create", "orders", "--config", "segment.ms=500")
    produce(kafka_ds, 0, "ada", "ben")
    table = str(broker.lake / "topics" / "orders")

    def rows() -> int:
        is_there = DeltaTable.is_deltatable(table)
        return DeltaTable(table).to_pyarrow_table().num_rows if is_there else 0

    wait_until("the table", lambda: rows() == 2)
    DeltaTable(table).delete("key = X'616461'")
    typed = pa.table({"_partition": [0], "_offset": pa.array([0], pa.int64()), "_key": ["ada"]})
    write_deltalake(str(broker.lake / "tables" / "orders"), typed)
    done = kafka_ds.run(*WORDS, "--json")
    assert done.status == 1
    assert "the erasure is not proven" in done.errors
    left = {
        (each["place"], each["what"]): each["left"] for each in json.loads(done.output)["places"]
    }
    assert {where for where, count in left.items() if count} == {
        ("topics/orders", "the table's log"),
        ("tables/orders", "the table's log"),
    }
    assert keys_of(kafka_ds) == ["ben"]


def test_a_condition_finds_what_is_in_values(broker: BrokerProcess, kafka_ds: CommandLine) -> None:
    """In logs as in tables; a typed table knows them by their places, once its steps have come past them."""
    typed_topic = ("--config", "lake.table.value.format=json")
    kafka_ds.ok("topic", "create", "orders", "--config", "segment.ms=500", *typed_topic)
    produce(kafka_ds, 0, "ada", "ben")
    table = str(broker.lake / "topics" / "orders")
    wait_until("the table", lambda: DeltaTable.is_deltatable(table))
    lines = '1:{"who": "secret of ada"}\n2:{"who": "cho"}\n3:{"what": [1]}\n4:no JSON\n'
    kafka_ds.ok("produce", "orders", "--key-separator", ":", typed=lines)
    where = (
        "try_cast(decode(value) AS JSON)->>'who' LIKE '%of ada' OR decode(value) = 'secret of ada'"
    )
    words = ("erase", "--topic", "orders", "--where", where)
    done = kafka_ds.run(*words, "--dry-run", "--json")
    assert place(done, "local segments")["found"] == 2
    assert "steps of `kafka-ds pipelines run`" in done.errors
    typed = pa.table({"_partition": [0, 0], "_offset": [2, 3], "who": ["secret of ada", "cho"]})
    step = TableStep(number=1, topic_id="", mode="append", start={0: 0}, end={0: 6})
    said = CommitProperties(custom_metadata={"userMetadata": step.text()})
    write_deltalake(str(broker.lake / "tables" / "orders"), typed, commit_properties=said)
    done = kafka_ds.run(*words)
    assert done.status == 0, done.errors
    assert keys_of(kafka_ds) == ["2", "3", "4", "ben"]
    left = [each for each in holding(broker.folder) if "_delta_log" not in each]
    assert left == []
    complaint = kafka_ds.run(*words[:-1], "nothing = 1").complaint
    assert complaint.startswith('--where: Binder Error: Referenced column "nothing" not found')


def test_all_replicas_are_searched(tmp_path: Path) -> None:
    with cluster(tmp_path, overrides=TIERED) as brokers:
        kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--replication-factor", "3")
        produce(kafka_ds, 0, "ada", "ben")
        done = kafka_ds.run(*WORDS, "--dry-run", "--json")
        found = [
            each for each in json.loads(done.output)["places"] if each["what"] == "local segments"
        ]
        assert len(found) == 3
        done = kafka_ds.run(*WORDS, "--json")
        assert done.status == 0, done.errors
        assert holding(tmp_path) == []


def test_a_lake_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    settings = {**QUICKLY, "lake.uri": address_for(tmp_path)}
    with running_broker(tmp_path, settings, s3_server.environment) as broker:
        kafka_ds = CommandLine(broker.bootstrap, tmp_path, **s3_server.environment)
        kafka_ds.ok("topic", "create", "orders")
        produce(kafka_ds, 0, "ada", "ben")
        done = kafka_ds.run(*WORDS, "--json")
        assert done.status == 0, done.errors
        assert place(done, "files of older versions")["found"] == 1
        assert keys_of(kafka_ds) == ["ben"]


def test_directories_elsewhere_are_not_proven(
    broker: BrokerProcess, kafka_ds: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records leave them all the same; who runs it on that machine sees that they have."""
    kafka_ds.ok("topic", "create", "orders")
    produce(kafka_ds, 0, "ada", "ben")
    monkeypatch.setattr(erasure, "is_of", lambda *_: False)
    words = ["--bootstrap-server", broker.bootstrap, *WORDS]
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 1
    assert f"not searched: {broker.data} of broker 1 is not on this machine" in done.stderr
    wait_until("deleted segments to go", lambda: holding(broker.folder) == [])
    assert kafka_ds.run(*WORDS, "--dry-run").status == 0


def test_what_cannot_be_done_is_said(kafka_ds: CommandLine, tmp_path: Path) -> None:
    assert kafka_ds.run(*WORDS, "--dry-run").complaint == "there is no topic orders"
    kafka_ds.ok("topic", "create", "orders", "--config", "remote.storage.enable=false")
    assert "topic orders is not tiered" in kafka_ds.run(*WORDS, "--dry-run").complaint
    elsewhere = MetadataLog(LocalStore(str(tmp_path / "elsewhere")))
    elsewhere.load()
    elsewhere.found("of others")
    done = kafka_ds.run(*WORDS, "--dry-run", "--lake", str(tmp_path / "elsewhere"))
    assert (
        "elsewhere is the lake of cluster of others, but the brokers belong to " in done.complaint
    )
    for words in (WORDS[:-2], (*WORDS, "--key-hex", "61"), (*WORDS[:-2], "--key-hex", "6")):
        done = kafka_ds.run(*words)
        assert (done.status, done.errors.count("\n")) == (2, 1)
    tiered = ("--config", "remote.storage.enable=true", "--config", "cleanup.policy=compact")
    kafka_ds.ok("topic", "create", "state", *tiered)
    kafka_ds.ok("produce", "state", "--key-separator", ":", typed="ada:secret of ada\n")
    done = kafka_ds.run("erase", "--topic", "state", "--key", "ada")
    assert (done.status, "write a tombstone for each key" in done.errors) == (1, True)
