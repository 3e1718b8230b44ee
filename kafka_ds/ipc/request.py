"""Pure: the base of requests to a worker; each operation has a frozen dataclass for its request and its response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")


class Request(Generic[A_co]):
    """A request to a worker, with a response of type `A_co`."""

    __slots__ = ()


class SendToWorker(Protocol):
    """Sends a request to a worker."""

    def __call__(self, request: Request[A]) -> Awaitable[A]:
        """The response. Raises WorkerLost, WorkerFailed."""


# Executes the requests of a class.
Operation = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """The response to a request that failed; `kind` is the reason, for callers that handle it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedAnswer:
    """A response whose buffers are in shared memory, at these `(position, bytes)`, until the lease ends."""

    answer: object
    lease: int
    runs: Sequence[tuple[int, int]]
