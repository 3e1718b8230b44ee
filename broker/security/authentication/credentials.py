"""Shell: stores SCRAM credentials as objects in the lake, outside any table (docs/decisions/0016-scram-credentials.md).

An object is durable before the commit that references it, and is deleted after the commit that no longer does. It is
written once. Its name begins with the controller epoch, so that the next controller deletes what an earlier one left
unreferenced. A broker reads the objects that the metadata reference and retries a missing one until the metadata
reference another. Log lines and errors never contain anything of an object.
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

T = TypeVar("T")


class Credentials:
    """Reads credentials on every broker; writes and deletes them on the controller."""

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
        # The object that each known credential was read from.
        self._read: dict[tuple[str, str], str] = {}
        self._working: asyncio.Task[None] | None = None
        self.sweeping: asyncio.Task[None] | None = None

    # -- reading --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read all referenced credentials; those that cannot be read now are retried."""
        await self._read_named()
        self._read_on()
        if self._image.controller_id == self._node_id:
            self._sweep_soon(self._image.controller_epoch)

    def applied(self, events: Iterable[Event]) -> None:
        """Apply committed metadata events."""
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
        """Wait until all referenced credentials have been read, at most SETTLE_SECONDS_MAX."""
        if self._working is not None:
            await asyncio.wait([self._working], timeout=SETTLE_SECONDS_MAX)

    def stop(self) -> None:
        """Stop reading and sweeping."""
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
                _LOGGER.warning("cannot read the %s credential of user %s: %s", *key[::-1], error)
                continue
            entry = self._image.security.credentials.get(key)
            if entry is not None and entry.credential == name:
                self._read[key] = name
                self._users.put(*key, credential)

    # -- writing --------------------------------------------------------------------------------

    async def write(self, credentials: Sequence[ScramCredential]) -> list[str]:
        """Write credentials to the lake; returns the object names for the commit. Raises OSError."""
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
        """Delete objects that are no longer referenced; the next controller deletes what remains."""

        def delete() -> None:
            for name in names:
                self._store.delete(name)

        if not names:
            return
        try:
            await self._in_thread(delete)
        except OSError as error:
            _LOGGER.warning("cannot delete an old credential from the lake: %s", error)

    def _sweep_soon(self, controller_epoch: int) -> None:
        self.sweeping = asyncio.get_running_loop().create_task(
            self._sweep(controller_epoch), name="credentials-sweep"
        )

    async def _sweep(self, controller_epoch: int) -> None:
        """Delete the unreferenced objects of earlier controllers."""
        try:
            entries = await self._in_thread(partial(self._store.list, CREDENTIALS))
        except OSError as error:
            _LOGGER.warning("cannot list the credentials in the lake: %s", error)
            return
        named = {entry.credential for entry in self._image.security.credentials.values()}
        dead = [
            entry.path
            for entry in entries
            if entry.path not in named and _epoch_of(entry.path) < controller_epoch
        ]
        await self.delete(dead)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _epoch_of(path: str) -> float:
    """The controller epoch in an object's name, also of a temporary object; infinite for other names."""
    text = path.rsplit("/", 1)[-1].lstrip(".")[:_EPOCH_DIGITS]
    return int(text) if text.isascii() and text.isdigit() else float("inf")
