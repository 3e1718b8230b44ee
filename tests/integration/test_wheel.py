"""The wheel: built from what Git holds, installed into an environment without this checkout, and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.processes import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "kafka_ds", "broker", "spark_conf")
TIMEOUT_S = 120

# What the packages hold beside Python, read from where the wheel was installed.
CONTENTS = """
import broker, kafka_ds, spark_conf
from importlib.metadata import version
from importlib.resources import files
from spark_conf.system_views import questions
assert version("kafka-ds")
assert files("kafka_ds").joinpath("py.typed").is_file()
assert files("spark_conf").joinpath("spark-defaults.conf").is_file()
assert len(questions()) > 10
print(files("broker"), files("kafka_ds"), files("spark_conf"), sep="\\n")
"""


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of an environment that has the wheel, and of this one the packages it requires."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("kafka_ds-*.whl")
    home = folder / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    # A path file of the second environment is not read for those it names: the checkout, which is installed here as
    # one to be edited, is not found.
    packages = Path(
        run(python, "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd=folder).strip()
    )
    (packages / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_it_holds_what_the_packages_need(programs: Path, tmp_path: Path) -> None:
    places = run(programs / "python", "-c", CONTENTS, cwd=tmp_path).split()
    assert len(places) == 3
    assert all(Path(each).is_relative_to(programs.parent) for each in places), places


def read_one(bootstrap: str, topic: str) -> bytes | None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_its_broker_runs(programs: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.program = (str(programs / "kafka-ds-broker"),)
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"one")
        assert producer.flush(TIMEOUT_S) == 0
        assert read_one(broker.bootstrap, "orders") == b"one"
    finally:
        assert broker.stop() == 0
