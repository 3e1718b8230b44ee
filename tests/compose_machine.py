"""docker-compose.yml, run without containers: each service's own command, settings and health check as plain processes.

Only what a container is for is replaced: host names and ports by free ones of this machine, volumes by folders, and the
images of others by the same programs: from their jars, or Debian's.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from spark_conf.jars import QUICK_JAVA, fetch
from spark_conf.java import java_command
from tests.processes import wait_until
from tests.s3_server import quiet

ROOT = Path(__file__).resolve().parents[1]
BROKERS = ("broker-1", "broker-2", "broker-3")
STOP_TIMEOUT_S = 120


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


class ComposeMachine:
    """What stands in for the containers: where each service's ports and folders are on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[tuple[str, int], int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.services: dict[str, Any] = compose()["services"]

    def port(self, service: str, port: int) -> int:
        key = service, port
        if key not in self._ports:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                self._ports[key] = found.getsockname()[1]
        return self._ports[key]

    def here(self, service: str, text: str) -> str:
        """A word of the compose file, translated to this machine."""
        names = "|".join([*self.services, "localhost", r"0\.0\.0\.0", r"127\.0\.0\.1"])

        def place(match: re.Match[str]) -> str:
            host, port = match.group(1), int(match.group(2))
            owner = host if host in self.services else service
            return f"127.0.0.1:{self.port(owner, port)}"

        text = re.sub(rf"\b({names}):(\d+)\b", place, text)
        text = re.sub(r"/dev/tcp/127\.0\.0\.1/(\d+)", lambda m: self._device(service, m), text)
        text = re.sub(
            r"metrics\.port=(\d+)",
            lambda m: f"metrics.port={self.port(service, int(m.group(1)))}",
            text,
        )
        for volume in self.services[service].get("volumes", []):
            name, target = volume.split(":")
            text = text.replace(target, str(self._folder / name))
        return text.replace("/etc/kafka-ds", str(self._folder / service))

    def _device(self, service: str, match: re.Match[str]) -> str:
        return f"/dev/tcp/127.0.0.1/{self.port(service, int(match.group(1)))}"

    def environment(self, service: str) -> dict[str, str]:
        given = self.services[service].get("environment", {})
        return {name: self.here(service, value) for name, value in given.items()}

    def start(self, service: str, command: list[str], **more: str) -> None:
        """Begin what the service runs; its log is `<service>.log`."""
        with (self._folder / f"{service}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **self.environment(service), **more},
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )
            )

    def start_broker(self, service: str) -> None:
        given = self.services[service]
        for config in given["configs"]:
            target = Path(self.here(service, config["target"]))
            target.parent.mkdir(parents=True, exist_ok=True)
            content = compose()["configs"][config["source"]]["content"]
            target.write_text(self.here(service, content))
        command = [self.here(service, word) for word in given["command"]]
        self.start(service, [sys.executable, "-m", "broker", *command])

    def start_s3(self) -> None:
        """The image's script hands its environment to Java as properties of these names."""
        settings = {
            f"-D{name.lower().replace('_', '.')}={value}"
            for name, value in self.environment("s3").items()
        }
        (self._folder / "objects" / "lake").mkdir(parents=True)
        empty = self._folder / "s3proxy.conf"
        empty.write_text("")
        jars = f"{fetch('s3proxy')}/*"
        main = ["org.gaul.s3proxy.Main", "--properties", str(empty)]
        words = [java_command(), *QUICK_JAVA, quiet(self._folder), *sorted(settings), "-cp", jars]
        self.start("s3", [*words, *main])

    def start_cluster(self) -> None:
        """The S3 server and the brokers, until they are healthy."""
        self.start_s3()
        wait_until("the S3 server", lambda: self.is_healthy("s3"))
        for service in BROKERS:
            self.start_broker(service)
        for service in BROKERS:
            wait_until(service, lambda name=service: self.is_healthy(name))

    def is_healthy(self, service: str) -> bool:
        words = self.services[service]["healthcheck"]["test"]
        assert words[0] == "CMD"
        command = [self.here(service, word) for word in words[1:]]
        command = [sys.executable if word == "python" else word for word in command]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def log(self, service: str) -> str:
        return (self._folder / f"{service}.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
