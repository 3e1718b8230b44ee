"""A broker with a listener of each protocol, for foreign clients, in the event loop that brokers run on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker.broker_server import BrokerServer
from broker.commands import loop_factory
from broker.config.loader import from_given
from broker.kafka_broker import KafkaBroker
from broker.security.authentication.scram_users import ScramCredential
from kafka_ds.process.system import SystemClock, SystemDisk, SystemNetwork
from kafka_ds.security.scram import salted, server_key, stored_key
from tests.certificates import Authority, TokenIssuer

HOST = "127.0.0.1"
TIMEOUT_S = 120.0
PASSWORD = "alice's secret"
SCRAM = "SCRAM-SHA-512"
Value = TypeVar("Value")

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "MUTUAL": "SSL",
    "OPEN_SASL": "SASL_PLAINTEXT",
    "SAFE_SASL": "SASL_SSL",
}


class SecuredBroker:
    """A node in its own thread, with the event loop that brokers run on."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.authority = Authority(folder / "certificates")
        self.issuer = TokenIssuer(folder / "tokens")
        self.identity = self.authority.issue("broker")
        self.keys = folder / "broker.pem"
        self.keys.write_text(self.identity.both_file.read_text())
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        given = {
            "listeners": ",".join(f"{name}://{HOST}:0" for name in LISTENERS),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in LISTENERS.items()),
            "log.dirs": folder / "log",
            "lake.uri": folder / "lake",
            "remote.log.storage.system.enable": "false",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keys,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*?),OU=clients.*$/$1/L,DEFAULT",
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM},OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.file.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "connection.failed.authentication.delay.ms": "1",
        } | {
            f"listener.name.{name}.plain.sasl.jaas.config": f'{plain} user_alice="{PASSWORD}";'
            for name in ("open_sasl", "safe_sasl")
        }
        given |= more or {}
        self._config = from_given({name: (str(value), "test") for name, value in given.items()})
        self.owner: BrokerServer
        self.node: KafkaBroker
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self._failure = failure
            self._ready.set()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.owner = BrokerServer(self._config, SystemClock(), SystemDisk(), SystemNetwork())
        self.node = await self.owner.start()
        salt = os.urandom(16)
        password = salted(SCRAM, PASSWORD, salt, 4096)
        credential = ScramCredential(
            salt, stored_key(SCRAM, password), server_key(SCRAM, password), 4096
        )
        self.node.security.scram_users.put("alice", SCRAM, credential)
        self._ready.set()
        await self._stop.wait()
        await self.owner.stop()

    def __enter__(self) -> SecuredBroker:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *raised: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)

    def run(self, what: Coroutine[Any, Any, Value]) -> Value:
        """Run something in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(TIMEOUT_S)

    def address(self, listener: str) -> tuple[str, int]:
        return self.owner.server.addresses[listener]

    def bootstrap(self, listener: str) -> str:
        return "{}:{}".format(*self.address(listener))

    def principals(self, listener: str) -> set[str]:
        """The principals that are connected to a listener now."""

        async def look() -> set[str]:
            guests = self.owner.server.connections
            return {str(getattr(g, "principal", "")) for g in guests if g.listener == listener}

        return self.run(look())
