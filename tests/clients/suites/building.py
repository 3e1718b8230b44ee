"""Gets the source of a suite at its tag, and builds it, in a folder outside of the repository's files.

Nothing of another project's code is kept here. What is there already, at the same tag, is used again; `source` may be a
folder that somebody has cloned, for those without a way to the outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from spark_conf import jars
from tests.clients.suites.allowances import Suite
from tests.clients.suites.junit import compiled

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".cache" / "client-suites"
# Kafka's command lines that librdkafka's tests call, by the names of Kafka's distribution.
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}

RUNNING_BROKER = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def stop(self):
        pass

    def wait_for(self, pattern, timeout=0):
        return True


SpawnedService = None
"""


class CannotBuild(RuntimeError):
    """A suite cannot be fetched or built; the text says what is missing."""


def built(suite: Suite, source: Path | None) -> Path:
    """The folder of the suite, ready to run; raises CannotBuild."""
    if suite.name == "kafka":
        return compiled(FOLDER / f"kafka-{suite.tag}")
    folder = source or (_unpacked(suite) if suite.name == "kafka-python" else _cloned(suite))
    if not folder.is_dir():
        raise CannotBuild(f"{folder} is no folder")
    if suite.name == "kafka-python":
        _complete_kafka_python(folder / "test")
    elif suite.name == "librdkafka":
        _build_librdkafka(folder)
    else:
        _need("go")
        _run(["go", "build", "./pkg/kgo"], folder)
    return folder


def _cloned(suite: Suite) -> Path:
    folder = FOLDER / f"{suite.name}-{suite.tag.replace('/', '-')}"
    if not folder.exists():
        _need("git")
        FOLDER.mkdir(parents=True, exist_ok=True)
        words = ["git", "clone", "--quiet", "--depth", "1", "--branch", suite.tag, suite.source]
        _run([*words, str(folder)], FOLDER)
    return folder


def _unpacked(suite: Suite) -> Path:
    """The source distribution of a Python package, by pip."""
    folder = FOLDER / f"{suite.source.replace('-', '_')}-{suite.tag}"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        words += ["--no-binary", suite.source, f"{suite.source}=={suite.tag}"]
        _run(words, FOLDER)
        with tarfile.open(FOLDER / f"{folder.name}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return folder


def _complete_kafka_python(tests: Path) -> None:
    """Its sdist leaves out what makes the tests a package, and the class of a broker that runs already."""
    (tests / "__init__.py").touch()
    (tests / "service.py").write_text(RUNNING_BROKER)


def _build_librdkafka(folder: Path) -> None:
    if (folder / "tests" / "test-runner").exists():
        return
    for tool in ("gcc", "g++", "make"):
        _need(tool)
    _run(["./configure", "--disable-curl", "--disable-gssapi"], folder)
    jobs = f"-j{os.cpu_count() or 1}"
    _run(["make", jobs, "libs"], folder)
    _run(["make", "-C", "tests", jobs, "test-runner"], folder)


def kafka_path(folder: Path) -> Path:
    """A folder like Kafka's distribution, as far as the tests look into it; with Kafka's own classes."""
    commands = folder / "kafka" / "bin"
    shutil.rmtree(commands, ignore_errors=True)
    commands.mkdir(parents=True)
    classes = jars.fetch("kafka")
    for name, main in TOOLS.items():
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec java -cp "{classes}/*" {main} "$@"\n')
        command.chmod(0o755)
    return commands.parent


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise CannotBuild(f"{tool} is not installed")


def _run(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2000:]
        raise CannotBuild(f"{' '.join(words)} in {folder} ended with {done.returncode}:\n{tail}")
