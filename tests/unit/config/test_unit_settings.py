"""One file, several brokers: what is derived for each, and what cannot be."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.main import program
from broker.config.broker import BrokerConfig
from broker.config.loader import brokers_of, from_given
from broker.unit.folders import check_single, check_unit
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemDisk

HOST = "host-a"


def brokers(**settings: object) -> list[BrokerConfig]:
    given = {name.replace("_", "."): (str(text), "test") for name, text in settings.items()}
    return [config for _, config in brokers_of(given, from_given(given), HOST)]


def mistake(**settings: object) -> str:
    with pytest.raises(ConfigError) as caught:
        brokers(**settings)
    return str(caught.value)


def test_one_process_is_the_file_as_it_is() -> None:
    (only,) = brokers(metrics_port=9404, broker_processes=1)
    assert (only.node_id, only.listeners) == (1, "PLAINTEXT://127.0.0.1:9092")
    assert (only.log_dirs, only.broker_rack, only.metrics_port) == (("data/log",), None, 9404)


def test_ids_ports_folders_and_rack_are_derived() -> None:
    found = brokers(
        broker_processes=3,
        node_id=10,
        listeners="PLAINTEXT://:9092, INNER://[::1]:19092,ANY://h:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,ANY:PLAINTEXT",
        advertised_listeners="PLAINTEXT://a.example:9092,INNER://[fe80::1]:19092",
        log_dirs="/one/,/two",
        cordoned_log_dirs="/one/",
        metrics_port=9404,
        console_port=8080,
        num_partitions=7,
    )
    assert [each.node_id for each in found] == [10, 11, 12]
    assert [[e.port for e in each.endpoints] for each in found] == [
        [9092, 19092, 0],
        [9093, 19093, 0],
        [9094, 19094, 0],
    ]
    assert found[2].advertised_listeners == "PLAINTEXT://a.example:9094,INNER://[fe80::1]:19094"
    assert [each.log_dirs for each in found] == [
        (f"/one/{node}", f"/two/{node}") for node in (10, 11, 12)
    ]
    assert [each.cordoned_log_dirs for each in found] == [(f"/one/{n}",) for n in (10, 11, 12)]
    assert {each.broker_rack for each in found} == {HOST}
    assert [each.metrics_port for each in found] == [None] * 3
    assert [each.console_port for each in found] == [8080, None, None]
    assert {each.num_partitions for each in found} == {7}


def test_a_rack_that_is_given_stays() -> None:
    assert {each.broker_rack for each in brokers(broker_processes=2, broker_rack="az-1")} == {
        "az-1"
    }


def test_a_single_log_directory_may_have_its_old_name() -> None:
    assert [each.log_dirs for each in brokers(broker_processes=2, log_dir="/d")] == [
        ("/d/1",),
        ("/d/2",),
    ]


def test_ports_that_would_be_had_twice_are_refused() -> None:
    twice = mistake(
        broker_processes=2,
        listeners="PLAINTEXT://:9092,INNER://h:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
    )
    assert "port 9093 would be that of INNER of node 1 and of PLAINTEXT of node 2" in twice
    assert "of metrics.port" in mistake(
        broker_processes=3, listeners="PLAINTEXT://h:9092", metrics_port=9094
    )
    assert "of console.port" in mistake(
        broker_processes=2, listeners="PLAINTEXT://:9092", console_port=9093
    )
    # Another address is another socket.
    assert len(brokers(broker_processes=2, listeners="PLAINTEXT://h:9092", console_port=9093)) == 2


def test_what_does_not_fit_names_the_broker() -> None:
    said = mistake(broker_processes=2, listeners="PLAINTEXT://:65535")
    assert "65536 is not a valid port" in said and said.endswith(
        "(node.id=2 of broker.processes=2)"
    )
    said = mistake(broker_processes=2, node_id=2**31 - 1)
    assert "node.id=2147483648" in said and "of broker.processes=2" in said
    assert "below the minimum" in mistake(broker_processes=0)


def own(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text("node.id=1\n")


def test_folders_of_a_single_broker_are_refused_to_a_unit(tmp_path: Path) -> None:
    own(tmp_path / "log")
    (config, *_) = brokers(log_dirs=tmp_path / "log")
    check_single(config, SystemDisk())
    given = {"log.dirs": (str(tmp_path / "log"), ""), "broker.processes": ("2", "")}
    with pytest.raises(
        ConfigError, match=f"move all that is in {tmp_path}/log to {tmp_path}/log/1"
    ):
        check_unit(from_given(given), SystemDisk())


def test_folders_of_a_unit_are_refused_to_a_single_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"log.dirs": (str(tmp_path / "log"), ""), "broker.processes": ("2", "")}
    check_unit(from_given(given), SystemDisk())  # There is nothing yet.
    for node_id in ("1", "2", "3", "7x"):
        own(tmp_path / "log" / node_id)
    with pytest.raises(ConfigError, match=f"or log.dirs={tmp_path}/log/1 for node.id=1 alone"):
        check_single(brokers(log_dirs=tmp_path / "log")[0], SystemDisk())
    with pytest.raises(ConfigError, match="has the folders of brokers 1, 2, 3 of a unit"):
        check_single(brokers(log_dirs=tmp_path / "log", node_id=5)[0], SystemDisk())
    with caplog.at_level(logging.WARNING):
        check_unit(from_given(given), SystemDisk())
    assert "has folders of brokers 3, which broker.processes=2 does not start" in caplog.text


def test_a_single_brokers_files_beside_a_units_are_not_moved_over_them(tmp_path: Path) -> None:
    own(tmp_path / "log")
    own(tmp_path / "log" / "2")
    given = {"log.dirs": (str(tmp_path / "log"), ""), "broker.processes": ("2", "")}
    with pytest.raises(ConfigError, match="move all but the folders 2 away"):
        check_unit(from_given(given), SystemDisk())


def test_a_directory_that_cannot_be_listed_stops_no_unit(tmp_path: Path) -> None:
    (tmp_path / "bad").touch()
    both = f"{tmp_path}/good,{tmp_path}/bad"
    given = {"log.dirs": (both, ""), "broker.processes": ("2", "")}
    check_unit(from_given(given), SystemDisk())
    check_single(brokers(log_dirs=both)[0], SystemDisk())


def test_config_check_shows_in_what_the_brokers_differ(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.processes=2\nmetrics.port=9404\nlisteners=PLAINTEXT://h:9092\n")
    words = ["config", "check", str(file), "--override", "broker.rack=r"]
    rows = json.loads(CliRunner().invoke(program, [*words, "--json"]).stdout)
    assert [(row["node"], row["setting"], row["value"], row["origin"]) for row in rows] == [
        (None, "broker.processes", "2", "server.properties line 1"),
        (None, "broker.rack", "r", "--override"),
        (1, "listeners", "PLAINTEXT://h:9092", "server.properties line 3, by broker.processes"),
        (2, "listeners", "PLAINTEXT://h:9093", "server.properties line 3, by broker.processes"),
        (1, "log.dirs", "data/log/1", "broker.processes"),
        (2, "log.dirs", "data/log/2", "broker.processes"),
        (None, "metrics.port", "9404", "server.properties line 2"),
        (1, "node.id", "1", "broker.processes"),
        (2, "node.id", "2", "broker.processes"),
    ]
    shown = CliRunner().invoke(program, words).stdout.splitlines()
    assert shown[0].split() == ["NODE", "SETTING", "VALUE", "DEFAULT", "ORIGIN"]
    file.write_text("broker.processes=2\nconsole.port=9093\n")
    assert "port 9093" in CliRunner().invoke(program, ["config", "check", str(file)]).stderr
