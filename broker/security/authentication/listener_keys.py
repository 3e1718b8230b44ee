"""Shell: the keys, certificates and users of all listeners; reloads files that change.

Files are checked every WATCH_SECONDS and read in a thread. If a file cannot be read, the broker logs an ERROR and keeps
what it read before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.config.dynamic import with_changes
from broker.config.loader import placed
from broker.security.authentication.listener_security import (
    CredentialLookup,
    ListenerSecurity,
    TokenLookup,
)
from kafka_ds.process.settings import ConfigError

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig

log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0


class ListenerKeys:
    """The security of one broker's listeners with TLS or SASL."""

    def __init__(self) -> None:
        self._secured: dict[str, ListenerSecurity] = {}
        self._watching: asyncio.Task[None] | None = None

    async def open(
        self, config: BrokerConfig, credentials: CredentialLookup, tokens: TokenLookup
    ) -> None:
        """Read keys, certificates and users of all listeners. Raises ConfigError.

        Dynamic settings win over the file's, whose keys may be gone by now.
        """
        loop = asyncio.get_running_loop()
        for listener, protocol in config.protocols.items():
            if protocol != "PLAINTEXT":
                opened = await loop.run_in_executor(
                    None, _opened, listener, config, credentials, tokens
                )
                self._secured[listener] = opened

    def of(self, listener: str) -> ListenerSecurity | None:
        """The security of a listener; None for PLAINTEXT."""
        return self._secured.get(listener)

    def watch(self) -> None:
        """Start checking the files for changes."""
        if any(each.has_files for each in self._secured.values()):
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="keys")

    def stop(self) -> None:
        """Stop checking the files."""
        if self._watching is not None:
            self._watching.cancel()

    async def configure(self, config: BrokerConfig) -> None:
        """Read everything again after settings have changed."""
        for security in self._secured.values():
            await self._in_thread(security.name, partial(security.read, config))

    async def validate(self, config: BrokerConfig) -> None:
        """Validate new settings for all listeners. Raises ConfigError."""
        for security in self._secured.values():
            await asyncio.get_running_loop().run_in_executor(None, security.validate, config)

    async def look(self) -> None:
        """Reload the files that have changed."""
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


def _opened(
    listener: str, config: BrokerConfig, credentials: CredentialLookup, tokens: TokenLookup
) -> ListenerSecurity:
    try:
        return ListenerSecurity(listener, config, credentials, tokens)
    except ConfigError as error:
        # Dynamic settings are committed; unusable ones must not keep the broker from starting.
        try:
            opened = ListenerSecurity(listener, with_changes(config, {}), credentials, tokens)
        except ConfigError:
            raise placed(error, config, "listeners") from None
        log.error(
            "listener %s: ignoring dynamic keys, using those of the file: %s", listener, error
        )
        return opened
