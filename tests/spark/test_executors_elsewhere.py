"""Executors on other machines: nothing of ours there but the installed wheel, and nothing of the driver's disk.

Each machine is a worker of a standalone cluster, at an address of its own, in a mount namespace in which this checkout,
the driver's folder and the other machine's are empty; brokers, the lake (a mount that all of them have) and the
cluster's ports are what they share.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_conf import jars
from tests.integration.sink_life import PARTITIONS, read_all
from tests.processes import BrokerProcess, wait_until
from tests.spark.java import QUICK_JAVA
from tests.spark.topics import Topic
from tests.wheels import ROOT, installed

# Of one address executors would read each other's files.
ADDRESSES = {"master": "127.0.0.1", "driver": "127.0.0.1", "one": "127.0.0.2", "two": "127.0.0.3"}
SPARK = Path(pyspark.__file__).parent
DRIVER_SECONDS_MAX = 1800
# What of the checkout machines have not: they get jars from the driver, and Python's packages by the wheel.
OURS = [ROOT / name for name in ("kafka_ds", "broker", "spark_conf", "tests", ".cache")]


class Machines:
    """Processes of a Spark cluster, each in a folder of its own below ``folder``."""

    def __init__(self, folder: Path, after: contextlib.ExitStack) -> None:
        self._folder = folder
        self._after = after
        self._java = str(Path(jars.java_command()).resolve().parent.parent)

    def start(self, name: str, words: Sequence[str | Path], hidden: Sequence[Path] = ()) -> Any:
        """A process on the machine of this name, which has nothing in the folders that are hidden."""
        home = self._folder / name
        home.mkdir(exist_ok=True)
        for each in ("tmp", "local"):
            (home / each).mkdir(exist_ok=True)
        # Nothing of the tests' own environment, in which Python and Spark are told where things are.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "JAVA_HOME": self._java,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_LOCAL_IP": ADDRESSES[name],
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": str(self._folder / "environment" / "bin" / "python"),
        }
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [*without(hidden), *words],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=home,
                start_new_session=True,
            )
        self._after.callback(end, process)
        return process

    def logs(self) -> str:
        """The ends of all of them."""
        found = {name: self._folder / name / "log" for name in ADDRESSES}
        return "\n".join(
            f"--- {name}\n{log.read_text(errors='replace')[-4000:]}"
            for name, log in found.items()
            if log.exists()
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Its executors as well, which are of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def without(hidden: Sequence[Path]) -> list[str]:
    """What a command begins with that is to find these folders empty."""
    if not hidden:
        return []
    mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(each))}; " for each in hidden)
    namespace = ["unshare", "--mount"] + ([] if os.getuid() == 0 else ["--user", "--map-root-user"])
    return [*namespace, "sh", "-ec", f'{mounts}exec "$@"', "sh"]


def are_permitted(folder: Path) -> bool:
    """Whether this machine lets us hide folders, and has the tools for it."""
    try:
        tried = [*without([folder]), "true"]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def place(name: str) -> list[str]:
    return ["--host", ADDRESSES[name], "--webui-port", "0"]


def listens(port: int) -> Callable[[], bool]:
    def tried() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    return tried


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with contextlib.ExitStack() as after:
        yield Machines(tmp_path, after)


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
    program, master = SPARK / "bin" / "spark-class", f"spark://127.0.0.1:{free_port}"
    role = "org.apache.spark.deploy.{0}.{1}".format
    port = ["--port", str(free_port)]
    machines.start("master", [program, role("master", "Master"), *place("master"), *port])
    wait_until("Spark's master", listens(free_port))
    names, driver = ("one", "two"), tmp_path / "driver"
    for each in (*names, "driver"):
        (tmp_path / each).mkdir()
    limits = ["--cores", "1", "--memory", "600m", "--work-dir", "work"]
    for name, other in zip(names, reversed(names), strict=True):
        machines.start(
            name,
            [program, role("worker", "Worker"), *place(name), *limits, master],
            hidden=[
                *(each for each in OURS if each.exists()),
                driver,
                tmp_path / other,
                tmp_path / "source",
            ],
        )
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
    assert {Path(each[2]).relative_to(tmp_path).parts[0] for each in found["machines"]} == {*names}
    expected = sorted((p, o, row["key"], row["value"]) for (p, o), row in topic.rows.items())
    assert found["batch"] == found["scan"] == expected
    values = sorted(repr(row["value"]) for row in topic.rows.values())
    for target in (copied, written):
        assert sorted(repr(m.value()) for m in read_all(broker.bootstrap, [target])) == values
