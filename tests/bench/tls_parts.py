"""What TLS costs a broker: the same clients by a listener with it and by one without, here and at Apache Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.rates import throughput_of
from tests.bench.report import Report
from tests.bench.sides import ApacheSide, BenchSide, OurSide, ready
from tests.certificates import Authority

SIZE, COUNT = 1024, 200_000
LISTENER = "TLS"


@dataclass(slots=True)
class ByTls:
    """A side whose clients use TLS; topics are created by its plain listener."""

    side: BenchSide
    address: str
    authority: Path
    client_options: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.client_options = {"tls": self.address, "authority": str(self.authority)}

    @property
    def name(self) -> str:
        return self.side.name

    @property
    def bootstrap(self) -> str:
        return self.side.bootstrap

    def pids(self) -> list[int]:
        return self.side.pids()


def tls(folder: Path, report: Report, runs: int) -> None:
    """Produce and consume, acks=all, one partition; with the keys and ciphers that both agree on by themselves."""
    authority = Authority(folder / "certificates")
    keys = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue("broker").both_file,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{LISTENER}:SSL",
    }
    ours = {**keys, "listeners": f"PLAINTEXT://127.0.0.1:0,{LISTENER}://127.0.0.1:0"}
    plain = (
        OurSide(folder / "ours", ours),
        ApacheSide(folder / "apache", keys, listeners={LISTENER: "SSL"}),
    )
    try:
        for side in plain:
            side.launch()
            ready(side)
        safe = [ByTls(side, side.address(LISTENER), authority.file) for side in plain]
        throughput_of(plain, report, SIZE, COUNT, runs, label="without TLS, ")
        throughput_of(safe, report, SIZE, COUNT, runs, label="by TLS, ")
    finally:
        for side in plain:
            side.stop()
