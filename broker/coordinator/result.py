"""Pure: inputs and outputs of a coordinator's shard, be it of groups or of transactions.

A request comes with a ticket, a number chosen by the runtime; its reply goes out under the same number, at once or much
later. Replies go out, and effects are performed, once the records of their event and of all before are committed.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

Ticket: TypeAlias = int


class Instant(NamedTuple):
    """A moment: `now_ms` goes into records, `monotonic_ms` decides what is due (setting the clock expires no
    session).
    """

    now_ms: int
    monotonic_ms: int


class LogLine(NamedTuple):
    """A line of the broker's log, and its fields."""

    text: str
    fields: dict[str, object]
    is_warning: bool = False


class Reply(NamedTuple):
    """The answer to the request of this ticket: a response, or a KafkaError that stands for one."""

    ticket: Ticket
    response: Any


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    producer_epoch: int


class _NoResponse:
    """The type of the marker for "no answer yet": None is an answer."""


NO_RESPONSE: Any = _NoResponse()


class CoordinatorResult(NamedTuple):
    """The outcome of one event: append the records, replay them, call `written`; then, once committed, the rest.

    `response` answers the request whose event this is, `replies` others that wait. `storing` is the records' meaning,
    for the shard. `lines` are for the broker's log, once the records are in the partition's.
    """

    records: tuple[Any, ...] = ()
    response: Any = NO_RESPONSE
    replies: tuple[Reply, ...] = ()
    effects: tuple[Any, ...] = ()
    storing: Any = None
    producer: ProducerIdAndEpoch | None = None
    lines: tuple[LogLine, ...] = ()
