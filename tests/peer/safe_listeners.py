"""A broker's listeners with authentication, and the files that Java's clients need for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.certificates import Authority
from tests.peer.jvm import TOOLS
from tests.peer.tools import Tools

USER, PASSWORD = "alice", "alice's secret"
SCRAM = "SCRAM-SHA-512"
LISTENERS = ("PLAINTEXT", "MUTUAL", "SAFE")
# How a client may come in: by which listener.
WAYS = {"mutual": "MUTUAL", "scram": "SAFE", "plain": "SAFE"}
_MODULES = "org.apache.kafka.common.security"


class SafeListeners:
    """SSL with certificates of both sides, and SASL_SSL with SCRAM and PLAIN, beside PLAINTEXT."""

    def __init__(self, folder: Path) -> None:
        """Keys and clients' files are made in `folder`."""
        self._folder = folder
        self._authority = Authority(folder)
        self._identity = self._authority.issue("broker")
        self._client = self._authority.issue(USER)

    def settings(self) -> dict[str, object]:
        """Those of the broker."""
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,MUTUAL:SSL,SAFE:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._identity.both_file,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.file,
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            "delegation.token.secret.key": "tools",
            "listener.name.safe.plain.sasl.jaas.config": (
                f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
        }

    def client_file(self, way: str, password: str = PASSWORD) -> Path:
        """The file of settings that a tool is given by --command-config."""
        given: dict[str, object] = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority.file,
            **self._who(way, password),
        }
        file = self._folder / f"{way}-{len(password)}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return file

    def token_file(self, token_id: str, secret: str) -> Path:
        """The same for who comes by a delegation token."""
        given = self.client_file("scram").read_text().splitlines()
        login = (
            f'sasl.jaas.config={_MODULES}.scram.ScramLoginModule required username="{token_id}" '
            f'password="{secret}" tokenauth="true";'
        )
        file = self._folder / f"{token_id}.properties"
        kept = [line for line in given if not line.startswith("sasl.jaas.config=")]
        file.write_text("\n".join([*kept, login]) + "\n")
        return file

    def _who(self, way: str, password: str) -> Mapping[str, object]:
        if way == "mutual" and password != PASSWORD:
            return {"security.protocol": "SSL"}  # Without what a password stands for elsewhere.
        if way == "mutual":
            return {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": self._client.both_file,
            }
        module = "scram.ScramLoginModule" if way == "scram" else "plain.PlainLoginModule"
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM if way == "scram" else "PLAIN",
            "sasl.jaas.config": (
                f'{_MODULES}.{module} required username="{USER}" password="{password}";'
            ),
        }


def make_user(tools: Tools) -> None:
    """The user of SCRAM, by Kafka's tool."""
    words = ("--alter", "--entity-type", "users", "--entity-name", USER)
    tools.run("ConfigCommand", *words, "--add-config", f"{SCRAM}=[password={PASSWORD}]")


def comes_by(tools: Tools, way: str) -> tuple[str, str]:
    """The arguments with which a tool connects to that listener."""
    return "--bootstrap-server", tools.broker.address(WAYS[way])


def run_safely(tools: Tools, safe: SafeListeners, way: str, name: str, *words: str) -> str:
    """What a tool prints that comes in by TLS."""
    name = f"{TOOLS}.{name}"
    config = ("--command-config", str(safe.client_file(way)))
    return tools.jvm.run(name, *comes_by(tools, way), *config, *words)
