"""Shell: the keys, certificates and users of all listeners, kept new.

Files are looked at every WATCH_SECONDS, and read in a thread; what cannot be read is an ERROR in the log, and what was
read before stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.config.dynamic import with_changes
from broker.security.authentication.listener_security import Credentials, ListenerSecurity
from kafka_ds.process.settings import ConfigError

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0


class ListenerKeys:
    """What the listeners with TLS or SASL of one broker have."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._secured: dict[str, ListenerSecurity] = {}
        self._watching: asyncio.Task[None] | None = None

    async def open(self, config: BrokerConfig) -> None:
        """Read what the listeners need. Raises ConfigError.

        What was changed by command comes before what the file names, which may be gone since.
        """
        loop = asyncio.get_running_loop()
        for listener, protocol in config.protocols.items():
            if protocol != "PLAINTEXT":
                opened = await loop.run_in_executor(None, self._open, listener, config)
                self._secured[listener] = opened

    def _open(self, listener: str, config: BrokerConfig) -> ListenerSecurity:
        try:
            return ListenerSecurity(listener, config, self._credentials)
        except ConfigError as error:
            # What is committed is committed: a broker that can start without it does.
            try:
                opened = ListenerSecurity(listener, with_changes(config, {}), self._credentials)
            except ConfigError:
                raise error from None
            log.error(
                "listener %s: ignoring dynamic keys, using those of the file: %s", listener, error
            )
            return opened

    def of(self, listener: str) -> ListenerSecurity | None:
        """Those of a listener; None for one with neither TLS nor SASL."""
        return self._secured.get(listener)

    def watch(self) -> None:
        """Begin to look at the files."""
        if any(each.has_files for each in self._secured.values()):
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="keys")

    def stop(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def configure(self, config: BrokerConfig) -> None:
        """Settings have changed: read everything again."""
        for security in self._secured.values():
            await self._in_thread(security.name, partial(security.read, config))

    async def judge(self, config: BrokerConfig) -> None:
        """Raises ConfigError where listeners could not go on with these settings."""
        for security in self._secured.values():
            await asyncio.get_running_loop().run_in_executor(None, security.judge, config)

    async def look(self) -> None:
        """Read what has changed in files since it was read."""
        for security in self._secured.values():
            if await self._in_thread(security.name, security.read_if_changed):
                log.info("listener %s reloaded its keys and certificates", security.name)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.look()

    async def _in_thread(self, listener: str, read: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, read)
        except ConfigError as error:
            log.error("listener %s keeps its previous keys and certificates: %s", listener, error)
            return False
