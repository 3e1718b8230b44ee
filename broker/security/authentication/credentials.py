"""Shell: SCRAM credentials as objects of the lake, which no table names (docs/decisions/0016-scram-credentials.md).

An object is durable before the commit that names it, and goes after the commit that does not any more. It is written
once, under a name that begins with the controller's epoch: what a crash left behind is of a lower epoch than the next
controller's, and goes with it. A broker reads what its metadata name, and asks again for an object that is not there
until the metadata name another one. Nothing of an object is ever part of a text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from broker.metadata.events import (
    ControllerChange,
    Event,
    ScramCredentialChanged,
    ScramCredentialDeleted,
)
from broker.security.authentication.scram_users import (
    ScramCredential,
    ScramUsers,
    decode_credential,
    encode_credential,
)
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.names import CREDENTIALS

if TYPE_CHECKING:
    from broker.metadata.image import MetadataImage
    from kafka_ds.delta.store.store import Store

_LOGGER = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
SETTLE_SECONDS_MAX = 5.0
_EPOCH_DIGITS = 10

Result = TypeVar("Result")


class Credentials:
    """This broker's view of them, and a controller's hand."""

    def __init__(
        self,
        store: Store,
        image: MetadataImage,
        users: ScramUsers,
        *,
        node_id: int,
        executor: Executor,
        new_uuid: Callable[[], bytes],
    ) -> None:
        self._store = store
        self._image = image
        self._users = users
        self._node_id = node_id
        self._executor = executor
        self._new_uuid = new_uuid
        # Which object each credential that is known was read from.
        self._read: dict[tuple[str, str], str] = {}
        self._working: asyncio.Task[None] | None = None
        self.sweeping: asyncio.Task[None] | None = None

    # -- reading --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read all that the metadata name; those that cannot be read now are read later."""
        await self._read_named()
        self._read_on()
        if self._image.controller_id == self._node_id:
            self._sweep_soon(self._image.controller_epoch)

    def applied(self, events: Iterable[Event]) -> None:
        """These events have come true."""
        for event in events:
            if isinstance(event, ScramCredentialDeleted):
                self._read.pop((event.user, event.mechanism), None)
                self._users.forget(event.user, event.mechanism)
            elif isinstance(event, ScramCredentialChanged):
                # The user's former credentials no longer authenticate a client.
                self._users.forget(event.user, event.mechanism)
                self._read_on()
            elif isinstance(event, ControllerChange) and event.controller_id == self._node_id:
                self._sweep_soon(event.controller_epoch)

    async def settled(self) -> None:
        """Wait until all that the metadata name has been read, no longer than SETTLE_SECONDS_MAX."""
        if self._working is not None:
            await asyncio.wait([self._working], timeout=SETTLE_SECONDS_MAX)

    def stop(self) -> None:
        """Read and sweep no more."""
        for task in (self._working, self.sweeping):
            if task is not None:
                task.cancel()

    def _read_on(self) -> None:
        if self._unread() and (self._working is None or self._working.done()):
            self._working = asyncio.get_running_loop().create_task(
                self._read_until_known(), name="credentials"
            )

    def _unread(self) -> list[tuple[tuple[str, str], str]]:
        named = self._image.security.credentials
        return [
            (key, entry.credential)
            for key, entry in named.items()
            if self._read.get(key) != entry.credential
        ]

    async def _read_until_known(self) -> None:
        while True:
            await self._read_named()
            if not self._unread():
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_named(self) -> None:
        for key, name in self._unread():
            try:
                data = await self._in_thread(partial(self._store.read, name))
                credential = decode_credential(data)
            except (OSError, ValueError) as error:
                _LOGGER.warning("the %s credential of %s cannot be read: %s", *key[::-1], error)
                continue
            entry = self._image.security.credentials.get(key)
            if entry is not None and entry.credential == name:
                self._read[key] = name
                self._users.put(*key, credential)

    # -- writing --------------------------------------------------------------------------------

    async def write(self, credentials: Sequence[ScramCredential]) -> list[str]:
        """Put them into the lake; their names, which a commit may name from now on. Raises OSError."""
        epoch = self._image.controller_epoch
        names = [
            f"{CREDENTIALS}/{epoch:0{_EPOCH_DIGITS}d}-{uuid_text(self._new_uuid())}"
            for _ in credentials
        ]

        def put() -> None:
            for name, credential in zip(names, credentials, strict=True):
                self._store.put_durable(name, encode_credential(credential))

        if names:
            await self._in_thread(put)
        return names

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects that no commit names any more; the next controller finds the rest."""

        def delete() -> None:
            for name in names:
                self._store.delete(name)

        if not names:
            return
        try:
            await self._in_thread(delete)
        except OSError as error:
            _LOGGER.warning("cannot delete an old credential from the lake yet: %s", error)

    def _sweep_soon(self, controller_epoch: int) -> None:
        self.sweeping = asyncio.get_running_loop().create_task(
            self._sweep(controller_epoch), name="credentials-sweep"
        )

    async def _sweep(self, controller_epoch: int) -> None:
        """Delete what earlier controllers left: objects that were never named, or are not named any more."""
        try:
            entries = await self._in_thread(partial(self._store.list, CREDENTIALS))
        except OSError as error:
            _LOGGER.warning("credentials in the lake cannot be listed: %s", error)
            return
        named = {entry.credential for entry in self._image.security.credentials.values()}
        dead = [
            entry.path
            for entry in entries
            if entry.path not in named and _epoch_of(entry.path) < controller_epoch
        ]
        await self.delete(dead)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _epoch_of(path: str) -> float:
    """The controller epoch in which an object was written, or begun; infinite for other names."""
    text = path.rsplit("/", 1)[-1].lstrip(".")[:_EPOCH_DIGITS]
    return int(text) if text.isascii() and text.isdigit() else float("inf")
