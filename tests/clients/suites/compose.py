"""What Sarama's tests ask of `docker compose`, done with brokers that run already: stop and start one, and so on.

`python -m tests.clients.suites.compose FOLDER ADDRESS compose WORD ...` is the command; `Compose` is the end of it in
the process that has the brokers. The cluster is there before the tests, and stays: `up`, `down` and `rm` do nothing.
"""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tests.clients.suites.clusters import Cluster

SOCKET = "compose.sock"
LINGER_S = 0.2
# How the tests call what is in the containers.
KAFKA, BROKER = "/opt/kafka-", "kafka-1:9091"


class ComposeStandIn:
    """Serves the command's `stop`, `start` and `logs`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._logged: Mapping[int, int] = {}
        outer = self

        class ComposeHandler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                verb, service = self.rfile.readline().decode().split()
                self.wfile.write(outer._done(verb, int(service.rpartition("-")[2])).encode())

        self._server = socketserver.ThreadingUnixStreamServer(str(folder / SOCKET), ComposeHandler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def begin(self) -> None:
        """All brokers run, and their logs begin here: for each test."""
        self._cluster.start()
        self._logged = {
            number: each.log_file.stat().st_size for number, each in self._cluster.brokers.items()
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _done(self, verb: str, number: int) -> str:
        broker = self._cluster.brokers[number]
        if verb == "logs":
            return broker.log_file.read_bytes()[self._logged[number] :].decode(errors="replace")
        if verb == "stop":
            broker.stop()
        else:
            self._cluster.start()
        return ""


def command(folder: Path, address: str) -> Path:
    """Write the command `docker` into a folder of its own, which is returned, to be first on the path."""
    commands = folder / "docker"
    commands.mkdir()
    script = commands / "docker"
    program = f"env PYTHONPATH={Path(__file__).parents[3]} {sys.executable} -m {__spec__.name}"
    script.write_text(f'#!/bin/sh\nexec {program} {folder} {address} "$@"\n')
    script.chmod(0o755)
    return commands


def main(folder: Path, address: str, words: list[str]) -> None:
    """Do what follows `docker compose`."""
    verb, *rest = words[1:]
    if verb == "exec":
        # `-T kafka-1 PROGRAM WORD ...`
        program = [each.replace(BROKER, address) for each in rest[2:]]
        _run([_in_folder(each, folder) for each in program])
    if verb in ("stop", "start", "logs"):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(folder / SOCKET))
            asking.sendall(f"{verb} {rest[-1]}\n".encode())
            while said := asking.recv(65_536):
                sys.stdout.write(said.decode(errors="replace"))


def _run(program: list[str]) -> None:
    """Run a program, and end as it does, but later than its streams, as Docker's command does.

    A test that reads to their ends beside waiting for the process fails at times if both are at once.
    """
    status = subprocess.run(program, check=False).returncode
    for stream in (1, 2):
        os.close(stream)
    time.sleep(LINGER_S)
    os._exit(status if status >= 0 else 128 - status)


def _in_folder(word: str, folder: Path) -> str:
    """Kafka's programs are in a folder of ours."""
    head, found, tail = word.partition(KAFKA)
    return f"{head}{folder / 'kafka'}/{tail.partition('/')[2]}" if found else word


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
