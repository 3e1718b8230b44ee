"""Gets the source of a suite at its tag, and builds it, in a folder outside of the repository's files.

Nothing of another project's code is kept here. What is there already, at the same tag, is used again; `source` may be a
folder that somebody has cloned, for those without a way to the outside.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from spark_conf import jars
from spark_conf.java import java_command
from tests.clients.suites.allowances import Suite
from tests.clients.suites.junit import compiled, compiled_for_streams
from tests.clients.suites.spark import compiled_for_spark
from tests.pythons import interpreter

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".cache" / "suites"
# Kafka's command lines that librdkafka's and Sarama's tests call, by the names of Kafka's distribution.
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-consumer.sh": "org.apache.kafka.tools.VerifiableConsumer",
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


# Of trivup, which starts brokers; the tests take a cluster from it where they want SASL.
RUNNING_CLUSTER = """import os


class KafkaCluster:
    def __init__(self, **conf):
        pass

    def wait_operational(self):
        pass

    def client_conf(self):
        return {
            "bootstrap.servers": os.environ["SASL_BROKERS"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "sasl_user",
            "sasl.password": "sasl_user",
        }

    def stop(self, cleanup=False):
        pass
"""
# A package whose only dependency is a suite's.
WANTING = """[package]
name = "wanting"
version = "0.1.0"

[lib]
path = "lib.rs"

[dependencies]
{name} = "={tag}"
"""
# Of Apache Kafka's own suites, the class that is replaced.
COMPILE = {
    "kafka": compiled,
    "kafka-requests": compiled,
    "kafka-streams": compiled_for_streams,
}
# The fork of buf that Karapace's library in Go is made of, by the commit that its go.mod names.
BUF = ("https://github.com/Aiven-Open/buf", "099cfb8b4b318fc5b0220fcaa9192d1d71857ee6")
AVRO = "avro==1.12.2"
# Of Karapace's pinned packages those that its tests do not import: linters, load generators.
NOT_FOR_TESTS = ("locust", "gevent", "geventhttpclient", "greenlet", "ruff", "pdbpp", "pyzmq")
CARGO_TEST = ("cargo", "test", "--quiet", "--locked")
# With what its go.mod lacks for newer versions of Go.
KAFKA_GO = ("-mod=mod",)
SARAMA = ("-tags=functional",)
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"


class CannotBuild(RuntimeError):
    """A suite cannot be fetched or built; the text says what is missing."""


def built(suite: Suite, source: Path | None, *, apache: bool = False) -> Path | None:
    """The folder of the suite, ready to run; raises CannotBuild.

    `apache`: for Apache Kafka's brokers, with which its own suites are a matter of their jars alone: None.
    """
    if suite.name in COMPILE:
        return None if apache else COMPILE[suite.name](FOLDER / f"{suite.name}-{suite.tag}")
    if suite.name in ("streams-smoke", "trogdor", "trogdor-faults"):
        return None
    if suite.name == "spark-kafka":
        return compiled_for_spark(FOLDER / f"spark-kafka-{suite.tag}")
    folder = source or BRING.get(suite.name, _cloned)(suite)
    if not folder.is_dir():
        raise CannotBuild(f"{folder} is no folder")
    BUILD[suite.name](suite, folder)
    return folder


def _cloned(suite: Suite) -> Path:
    folder = FOLDER / f"{suite.name}-{suite.tag.replace('/', '-')}"
    if not folder.exists():
        _need("git")
        FOLDER.mkdir(parents=True, exist_ok=True)
        words = ["git", "clone", "--quiet", "--depth", "1", "--branch", suite.tag, suite.source]
        _run([*words, str(folder)], FOLDER)
    return folder


def _go_module(suite: Suite) -> Path:
    """The files of a Go module, by Go; a copy, since those of Go's own cache cannot be written to."""
    folder = FOLDER / f"{suite.name}-{suite.tag}"
    if not folder.exists():
        _need("go")
        FOLDER.mkdir(parents=True, exist_ok=True)
        said = _run(["go", "mod", "download", "-json", f"{suite.source}@{suite.tag}"], FOLDER)
        shutil.copytree(json.loads(said)["Dir"], folder, copy_function=shutil.copy)
        for each in (folder, *folder.rglob("*")):
            each.chmod(each.stat().st_mode | stat.S_IWUSR)
    return folder


def _crate(suite: Suite) -> Path:
    """The files of a Rust crate, by Cargo, which fetches what a package depends on; a copy."""
    folder = FOLDER / f"{suite.name}-{suite.tag}"
    if not folder.exists():
        _need("cargo")
        with tempfile.TemporaryDirectory() as wanting:
            package = Path(wanting)
            (package / "lib.rs").touch()
            (package / "Cargo.toml").write_text(WANTING.format(name=suite.source, tag=suite.tag))
            said = json.loads(_run(["cargo", "metadata", "--format-version=1"], package))
        found = next(each for each in said["packages"] if each["name"] == suite.source)
        shutil.copytree(Path(found["manifest_path"]).parent, folder)
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


def _complete_kafka_python(_suite: Suite, folder: Path) -> None:
    """Its sdist leaves out what makes the tests a package, and the class of a broker that runs already."""
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(RUNNING_BROKER)


def go_binary(folder: Path, package: str, *more: str) -> Path:
    """The compiled tests of a package of Go's; of what is compiled already Go makes them in a second.

    Vetting them, and all that they import, is for their own project.
    """
    _need("go")
    binary = folder / package / "suite.test"
    _run(["go", "test", "-vet=off", *more, "-c", "-o", str(binary), f"./{package}"], folder)
    return binary


def _build_franz_go(_suite: Suite, folder: Path) -> None:
    go_binary(folder, "pkg/kgo")


def _build_kafka_go(_suite: Suite, folder: Path) -> None:
    go_binary(folder, "", *KAFKA_GO)


def _build_sarama(_suite: Suite, folder: Path) -> None:
    go_binary(folder, "", *SARAMA)
    if not toxiproxy().exists():
        toxiproxy().parent.mkdir(parents=True, exist_ok=True)
        _run(["go", "install", TOXIPROXY], FOLDER, GOBIN=str(toxiproxy().parent))


def _build_rskafka(_suite: Suite, folder: Path) -> None:
    for tool in ("cargo", "gcc", "make"):
        _need(tool)
    toolchain = folder / "rust-toolchain.toml"
    if toolchain.exists():
        # For the Rust that is installed; Rust from 1.95 on does not compile the pinned version.
        toolchain.unlink()
        _run(["cargo", "update", "--package", "rsasl"], folder)
    files = [f"--test={each}" for each in ("client", "consumer", "producer", "produce_consume")]
    _run([*CARGO_TEST, "--no-run", *files], folder)


def toxiproxy() -> Path:
    """The program, as `built` leaves it for Sarama's suite."""
    return FOLDER / f"toxiproxy-{TOXIPROXY.partition('@')[2]}" / "server"


def _build_confluent_kafka_python(suite: Suite, _folder: Path) -> None:
    """The client at the tests' version, in an environment of its own, with a cluster in place of trivup's."""
    python = python_of(suite.name)
    if python.parents[1].exists():
        return
    _run([sys.executable, "-m", "venv", str(python.parents[1])], ROOT)
    client = f"confluent-kafka[avro,json,protobuf,schemaregistry]=={suite.tag.removeprefix('v')}"
    words = [str(python), "-m", "pip", "install", "--quiet", client]
    _run([*words, "pytest", "pytest-asyncio", "pytest-timeout"], ROOT)
    clusters = python.parents[1] / "stand-ins" / "trivup" / "clusters"
    clusters.mkdir(parents=True)
    (clusters / "KafkaCluster.py").write_text(RUNNING_CLUSTER)


def _build_karapace(_suite: Suite, folder: Path) -> None:
    """Its pinned packages in an environment of its own, and its library in Go, of a fork that it names."""
    for tool in ("go", "git", "protoc"):
        _need(tool)
    python = python_of("karapace")
    if python.parents[1].exists():
        return
    newer = interpreter("3.12")
    if newer is None:
        raise CannotBuild("Python 3.12 is not installed")
    _run([newer, "-m", "venv", str(python.parents[1])], ROOT)
    # Avro's own package, in place of a fork that is an archive of GitHub's.
    pinned = (folder / "requirements" / "requirements-dev.txt").read_text().splitlines()
    wanted = [line for line in pinned if line[:1].isalpha() and "@" not in line]
    wanted = [line for line in wanted if line.partition("=")[0] not in NOT_FOR_TESTS]
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wanted, AVRO], ROOT)
    packages = next((python.parents[1] / "lib").glob("python*")) / "site-packages"
    (packages / "karapace.pth").write_text(f"{folder / 'src'}\n")
    (folder / "src" / "karapace" / "version.py").write_text(f"__version__ = '{_suite.tag}'\n")
    # Where its containers have them.
    shutil.copytree(folder / "container" / "certs", folder / "certs", dirs_exist_ok=True)
    library = folder / "go" / "protopace"
    buf = FOLDER / f"buf-{BUF[1]}"
    if not buf.exists():
        _run(["git", "clone", "--quiet", "--no-checkout", BUF[0], str(buf)], FOLDER)
        _run(["git", "checkout", "--quiet", BUF[1]], buf)
    local = f"-replace=github.com/bufbuild/buf={buf}"
    _run(["go", "mod", "edit", "-toolchain=none", local], library)
    words = ["go", "build", "-mod=mod", "-buildmode=c-shared", "-o"]
    _run([*words, str(packages / "protopacelib.so"), "."], library)


def python_of(suite: str) -> Path:
    """The Python of a suite that has an environment of its own."""
    return FOLDER / f"{suite}-environment" / "bin" / "python"


def _build_librdkafka(_suite: Suite, folder: Path) -> None:
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
        command.write_text(f'#!/bin/sh\nexec {java_command()} -cp "{classes}/*" {main} "$@"\n')
        command.chmod(0o755)
    return commands.parent


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise CannotBuild(f"{tool} is not installed")


def _run(words: list[str], folder: Path, **more: str) -> str:
    environment = {**os.environ, **more}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2000:]
        raise CannotBuild(f"{' '.join(words)} in {folder} ended with {done.returncode}:\n{tail}")
    return done.stdout


# How a suite's files are brought, where it is not by a clone; and what is made of them.
BRING = {
    "kafka-go": _go_module,
    "kafka-python": _unpacked,
    "rskafka": _crate,
    "sarama": _go_module,
    "franz-go": _go_module,
}
BUILD = {
    "librdkafka": _build_librdkafka,
    "franz-go": _build_franz_go,
    "kafka-go": _build_kafka_go,
    "kafka-python": _complete_kafka_python,
    "karapace": _build_karapace,
    "rskafka": _build_rskafka,
    "sarama": _build_sarama,
    "confluent-kafka-python": _build_confluent_kafka_python,
}
