"""Executors on other machines, which have only the installed wheel and cannot see the driver's disk.

Each machine is a worker of a standalone cluster, with its own address, in a mount namespace in which this checkout, the
driver's folder and the other machine's folder are empty. They share the brokers, the lake (mounted everywhere) and the
cluster's ports.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sink_life import PARTITIONS, read_all
from tests.processes import BrokerProcess
from tests.spark.machines import NAMES, Machines, are_permitted
from tests.spark.topics import Topic
from tests.wheels import ROOT, installed

DRIVER_SECONDS_MAX = 1800
# What of the checkout machines have not: they get jars from the driver, and Python's packages by the wheel.
OURS = [ROOT / name for name in ("kafka_ds", "broker", "spark_conf", "tests", ".cache")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with contextlib.ExitStack() as after:
        python = str(tmp_path / "environment" / "bin" / "python")
        yield Machines(tmp_path, after, environment={"PYSPARK_PYTHON": python})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_executors_need_the_wheel_and_nothing_of_the_driver(
    broker: BrokerProcess, topic: Topic, tmp_path: Path, machines: Machines, free_port: int
) -> None:
    if not are_permitted(tmp_path):
        pytest.skip("needs util-linux, and to be let make mount namespaces")
    topic.create(partitions=2).produce(6000, size=500)
    assert all(topic.wait_until_tiered(n, least=1000) < 3000 for n in (0, 1))
    copied, written = (
        Topic(broker, f"{topic.name}-{n}").create(partitions=PARTITIONS).name for n in range(2)
    )
    installed(tmp_path)
    master = machines.start_master(free_port)
    driver = tmp_path / "driver"
    for each in (*NAMES, "driver"):
        (tmp_path / each).mkdir()
    for name, other in zip(NAMES, reversed(NAMES), strict=True):
        hidden = [*filter(Path.exists, OURS), driver, tmp_path / other, tmp_path / "source"]
        machines.start_worker(name, master, hidden)
    (driver / "here").touch()
    seen = [driver / "here", ROOT / "kafka_ds" / "__init__.py", ROOT / "tests" / "wheels.py"]
    arguments = {"master": master, "bootstrap": broker.bootstrap, "topic": topic.name,
                 "copied": copied, "written": written, "folder": driver}  # fmt: skip
    words = [f"--{name}={value}" for name, value in arguments.items()]
    words += [f"--hidden={path}" for path in seen]
    assert all(path.exists() for path in seen)
    process = machines.start(
        "driver", [sys.executable, ROOT / "tests" / "spark" / "elsewhere_driver.py", *words]
    )
    try:
        status = process.wait(DRIVER_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the driver did not end in {DRIVER_SECONDS_MAX} s\n{machines.logs()}")
    assert status == 0, machines.logs()

    found = pickle.loads((driver / "found").read_bytes())
    for prefix, package, folder, visible in found["machines"]:
        assert prefix == str(tmp_path / "environment")
        assert Path(package).is_relative_to(prefix)
        assert visible == "", folder
    homes = {Path(each[2]).relative_to(tmp_path).parts[0] for each in found["machines"]}
    assert homes == set(NAMES)
    expected = sorted((p, o, row["key"], row["value"]) for (p, o), row in topic.rows.items())
    assert found["batch"] == found["scan"] == expected
    values = sorted(repr(row["value"]) for row in topic.rows.values())
    for target in (copied, written):
        assert sorted(repr(m.value()) for m in read_all(broker.bootstrap, [target])) == values
