"""Pure: what a worker is asked for and answers: one frozen dataclass per operation, and one per answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Buffer = bytes | bytearray | memoryview
A_co = TypeVar("A_co", covariant=True)
A = TypeVar("A")


class Request(Generic[A_co]):
    """What a worker is asked for; an answer of type `A_co` comes back."""

    __slots__ = ()


class SendToWorker(Protocol):
    """Has a worker carry out a request."""

    def __call__(self, request: Request[A]) -> Awaitable[A]:
        """The answer. Raises WorkerLost, WorkerFailed."""


# What carries out the requests of one class.
Operation = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """A request was not carried out; `kind` is the reason, for callers that act on it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """An answer whose buffers lie in shared memory, at these `(position, bytes)`, as long as the lease lasts."""

    answer: object
    lease: int
    runs: Sequence[tuple[int, int]]
