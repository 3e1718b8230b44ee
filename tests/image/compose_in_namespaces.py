"""Runs the services of docker-compose.yml from the built images, each in a network namespace of its own.

python -m tests.image.compose_in_namespaces FOLDER BUILDAH…: FOLDER takes logs and volumes, BUILDAH… is the command with
its options. It runs inside network and mount namespaces that end with it. Ports, names, commands, settings, health
checks and volumes are the compose file's; the S3 server is the same one from its jars, as its image is not built here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_conf.jars import QUICK_JAVA, fetch
from spark_conf.java import java_command
from tests.image.in_a_namespace import broker_below
from tests.integration.cluster_network import ClusterNetwork, address
from tests.processes import wait_until
from tests.s3_server import quiet

ROOT = Path(__file__).resolve().parents[2]
BROKERS = {"broker-1": 1, "broker-2": 2, "broker-3": 3}
S3 = 4
SPARK = 5
NODES = {**BROKERS, "s3": S3, "spark": SPARK}
COUNT = 300
STOP_TIMEOUT_S = 120


class Compose:
    """The services that run."""

    def __init__(self, folder: Path, buildah: list[str]) -> None:
        self._folder = folder
        self._buildah = buildah
        self._file: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self._hosts = folder / "hosts"
        names = [f"{address(node)} {name}" for name, node in NODES.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        subprocess.run(["mount", "--bind", str(self._hosts), "/etc/hosts"], check=True)
        self._network = ClusterNetwork(NODES.values())
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._containers: dict[str, str] = {}

    def _make_container(self, service: str) -> None:
        target = self._file["services"][service]["build"]["target"]
        words = [*self._buildah, "from", "--pull-never", f"localhost/{target}"]
        made = subprocess.run(words, check=True, capture_output=True, text=True)
        self._containers[service] = made.stdout.strip()

    def _words(self, service: str, command: list[str]) -> list[str]:
        """A command in the service's container, network, volumes and environment."""
        given = self._file["services"][service]
        container = self._containers[service]
        words = [*self._network.prefix(NODES[service]), *self._buildah, "run", "--no-hosts"]
        # As in a container of Docker's, its own name has an address: Spark looks it up.
        words += ["--isolation", "chroot", "--hostname", service]
        words += ["--volume", f"{self._hosts}:/etc/hosts"]
        for name, value in given.get("environment", {}).items():
            words += ["--env", f"{name}={value}"]
        for volume in given.get("volumes", []):
            name, target = volume.split(":")
            place = self._folder / name
            place.mkdir(exist_ok=True)
            os.chown(place, 1000, 1000)
            words += ["--volume", f"{place}:{target}"]
        for config in given.get("configs", []):
            place = self._folder / config["source"]
            place.write_text(self._file["configs"][config["source"]]["content"])
            words += ["--volume", f"{place}:{config['target']}"]
        return [*words, container, "--", *command]

    def _start(self, service: str, words: list[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{service}.log").open("ab") as log:
            self._running[service] = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=ROOT
            )

    def start_s3(self) -> None:
        """The image's script hands its environment to Java as properties of these names."""
        given = self._file["services"]["s3"]["environment"]
        (self._folder / "objects" / "lake").mkdir(parents=True)
        settings = {
            f"-D{name.lower().replace('_', '.')}={value}".replace(
                "=/data", f"={self._folder}/objects"
            )
            for name, value in given.items()
        }
        empty = self._folder / "s3proxy.conf"
        empty.write_text("")
        words = [*self._network.prefix(S3), java_command(), *QUICK_JAVA, quiet(self._folder)]
        main = ["-cp", f"{fetch('s3proxy')}/*", "org.gaul.s3proxy.Main", "--properties", str(empty)]
        self._start("s3", [*words, *sorted(settings), *main], {})
        probe = [*self._network.prefix(S3), "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9000"]
        wait_until("the store", lambda: subprocess.run(probe, capture_output=True).returncode == 0)

    def start_broker(self, service: str, entrypoint: list[str]) -> None:
        """By the image's entrypoint and the service's command."""
        self._make_container(service)
        command = self._file["services"][service]["command"]
        self._start(service, self._words(service, [*entrypoint, *command]), {})

    def is_healthy(self, service: str) -> bool:
        """What its health check says, in its container."""
        kind, *command = self._file["services"][service]["healthcheck"]["test"]
        assert kind == "CMD"
        words = self._words(service, command)
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def spark(self, statement: str) -> str:
        """What `docker compose run spark STATEMENT` prints."""
        self._make_container("spark")
        entrypoint = self._file["services"]["spark"]["entrypoint"]
        words = self._words("spark", [*entrypoint, statement])
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    def stop(self) -> None:
        """SIGTERM to each broker, then the store; every broker must end well."""
        for service, process in reversed(self._running.items()):
            pid = broker_below(process.pid) if service in BROKERS else process.pid
            os.kill(pid or process.pid, signal.SIGTERM)
            status = process.wait(STOP_TIMEOUT_S)
            assert service not in BROKERS or status == 0, (service, status)

    def kill(self) -> None:
        """Whatever is left."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(broker_below(process.pid) or process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        self._network.close()


def use(bootstrap: str) -> int:
    """Produce to a topic with three replicas and consume it; how many came."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wait_until("three brokers", lambda: len(admin.list_topics(timeout=10).brokers) == 3)
    admin.create_topics([NewTopic("orders", 3)])["orders"].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(COUNT):
        producer.produce("orders", b"%d" % number, key=b"%d" % number)
    assert producer.flush(120) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(m for m in consumer.consume(COUNT, 1) if not m.error())
        return len(found) >= COUNT

    wait_until("all records", has_all)
    consumer.close()
    return len(found)


def main(folder: Path, buildah: list[str]) -> None:
    compose = Compose(folder, buildah)
    image = json.loads(subprocess.check_output([*buildah, "inspect", "--type", "image", "broker"]))
    try:
        compose.start_s3()
        for service in BROKERS:
            compose.start_broker(service, image["OCIv1"]["config"]["Entrypoint"])
        for service in BROKERS:
            wait_until(
                f"{service} to be healthy", lambda service=service: compose.is_healthy(service)
            )
        assert use("broker-1:9092,broker-2:9092,broker-3:9092") == COUNT
        assert str(COUNT) in compose.spark("SELECT count(*) FROM orders")
        compose.stop()
    finally:
        compose.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
