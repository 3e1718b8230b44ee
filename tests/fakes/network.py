"""Whoever is sent requests: other brokers, the controller, a worker. Tests say what they answer, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.transport.peer import PeerUnreachable


class Respondent:
    """Notes what it is sent, and to whom that was addressed.

    It answers with the next of `answers`, else as `answer` says, which is given the request and whom it was for. What
    is an exception is raised, and what can be awaited is. Without an `answer` the test lets `waiting` know.
    """

    def __init__(self, answer: Callable[..., Any] | None = None) -> None:
        self.asked: list[Any] = []
        self.addressed: list[Any] = []
        self.answers: list[Any] = []
        self.waiting: list[asyncio.Future[Any]] = []
        self.meanwhile: Callable[[], Any] = lambda: None
        """What happens between the question and its answer."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        if answer is not None:
            self.answer = answer  # type: ignore[method-assign]

    def answer(self, request: Any, *to: Any) -> Any:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    async def send(self, *to_and_request: Any, timeout_ms: int = 0) -> Any:
        """As `Peers`, `ControllerChannel` and a worker have it: a broker's id and address come first, or nothing."""
        *to, request = to_and_request
        self.asked.append(request)
        self.addressed.append(to[0] if to else None)
        await self.may_answer.wait()
        if isinstance(happening := self.meanwhile(), Awaitable):
            await happening
        answer = self.answers.pop(0) if self.answers else self.answer(request, *to)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drop(self, broker_id: int) -> None:
        """Close the connection: who waits is told."""
        for each in self.waiting:
            if not each.done():
                each.set_exception(PeerUnreachable("dropped"))

    def close(self) -> None:
        self.drop(0)
