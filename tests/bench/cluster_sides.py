"""Three brokers on each side: ours on one lake, Apache Kafka's with KRaft. Both at their defaults but replicated."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.bench.sides import ApacheKafka, OurSide, free_port

BROKERS = 3
# What people set for three brokers.
REPLICATED: Mapping[str, object] = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": BROKERS - 1,
    "offsets.topic.replication.factor": BROKERS,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": BROKERS - 1,
}


class OurCluster:
    """Brokers of ours, numbered from 1."""

    name = OurSide.name

    def __init__(self, folder: Path, overrides: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        own = {**REPLICATED, "lake.uri": folder / "lake", **(overrides or {})}
        self.sides = [
            OurSide(folder / f"broker-{number}", {"node.id": number, **own})
            for number in range(1, BROKERS + 1)
        ]
        self.bootstrap = ",".join(side.bootstrap for side in self.sides)

    def launch(self, *, clean: bool) -> None:
        if clean:
            shutil.rmtree(self.folder, ignore_errors=True)
        for side in self.sides:
            side.launch(clean=False)

    def pids(self) -> list[int]:
        return [pid for side in self.sides if side.broker.running() for pid in side.pids()]

    def stop(self) -> None:
        for side in self.sides:
            if side.broker.running():
                side.stop()


class ApacheCluster:
    """Apache Kafka's, each broker and controller in one process, as small clusters are run."""

    name = ApacheKafka.name

    def __init__(self, folder: Path) -> None:
        ports = {number: (free_port(), free_port()) for number in range(1, BROKERS + 1)}
        voters = ",".join(f"{n}@127.0.0.1:{controller}" for n, (_, controller) in ports.items())
        self.sides = []
        for number, (port, controller) in ports.items():
            listener = f"PLAINTEXT://127.0.0.1:{port}"
            own = {
                **REPLICATED,
                "node.id": number,
                "controller.quorum.voters": voters,
                "listeners": f"{listener},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listener,
            }
            self.sides.append(ApacheKafka(folder / f"broker-{number}", own))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports.values())

    def launch(self, *, clean: bool) -> None:
        for side in self.sides:
            if clean:
                side.format()
            side.launch(clean=False)

    def pids(self) -> list[int]:
        return [pid for side in self.sides for pid in side.pids()]

    def stop(self) -> None:
        for side in self.sides:
            side.stop()
