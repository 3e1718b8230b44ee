"""Shell: a controller that waits for the store, until it hears by wire that there is another one.

Rules of this file: a store that hangs must not keep a broker from following. What was begun may still end, in a thread;
nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Deposed(Exception):
    """There is another controller, while the fate of a commit of this one is unknown."""


class Deposing:
    """What ends the wait."""

    def __init__(self) -> None:
        self._told: asyncio.Future[None] | None = None
        self._is_told = False

    def tell(self) -> None:
        """There is another controller: until `heard`, nothing more is waited for."""
        self._is_told = True
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    def heard(self) -> None:
        """This broker goes on with what that controller has decided."""
        self._is_told = False

    async def unless(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What comes of it; raises Deposed if `tell` comes first."""
        if self._is_told:
            work.close()
            raise Deposed("another broker has become the controller")
        working = asyncio.ensure_future(work)
        self._told = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((working, self._told), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Deposed("another broker has become the controller")
            return working.result()
        finally:
            working.cancel()
