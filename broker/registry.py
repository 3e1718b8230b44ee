"""Pure: which requests this broker serves, in which versions, and by which function.

- A handler announces itself once, by the decorator `serves`. The answer to ApiVersions, the check of a request's
  version and the table in docs/reference/protocol.md all come from here, so that they always match the code.
- Handlers are plain functions that may return an awaitable: a handler that answers at once needs no task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from broker.principal import ANONYMOUS, Principal
from kafka_ds.protocol.types import api_key_of

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker
    from kafka_ds.protocol.frame import RequestHeader

HandlerResult: TypeAlias = Any | None | Awaitable[Any | None]
Handler: TypeAlias = Callable[[Any, "RequestContext"], HandlerResult]

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


@dataclass(slots=True)
class ClientInformation:
    """The port of a connection's client, and the software that its ApiVersions named (KIP-511).

    `sends_files`: the connection takes ranges of files in responses, too.
    """

    port: int = 0
    sends_files: bool = False
    software_name: str = "unknown"
    software_version: str = "unknown"


# Of a request in an Envelope: another broker has its client.
NO_CLIENT = ClientInformation()


class RequestContext(NamedTuple):
    """Where a request came from: its header, the peer, the listener's name, the principal, and the broker that serves
    it.

    A frozen dataclass would take 1.3 µs more of each request.
    """

    header: RequestHeader
    client_host: str
    listener: str
    broker: KafkaBroker
    client: ClientInformation
    principal: Principal = ANONYMOUS
    # Serves the request within an Envelope: its frame, the client's host, the listener, and the principal.
    serve_enveloped: Callable[[memoryview, str, str, Principal], Awaitable[bytes | None]] | None = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One entry of the registry.

    `advertised` is what ApiVersions says; it may begin below `lowest` (Produce from 0: old librdkafka takes the
    range as a sign of what compression it may use). `pipelined`: when
    the handler returns, everything that depends on the order of the connection's requests is done, so the next
    request may start while this one's answer is still awaited. Without it requests run one after the other.
    `unstable`: the highest version is served with `unstable.api.versions.enable` only, as in Kafka.
    """

    api_key: int
    request: type
    lowest: int
    highest: int
    advertised: tuple[int, int]
    handler: Handler
    pipelined: bool
    forwarded: bool = False
    internal: bool = False
    unstable: bool = False

    def enabled(self, *, unstable_versions: bool) -> Served:
        """What a broker serves of it, with or without Kafka's unstable versions."""
        if not self.unstable or unstable_versions:
            return self
        highest = self.highest - 1
        return replace(self, highest=highest, advertised=(self.advertised[0], highest))

    @property
    def name(self) -> str:
        """The API's name as Kafka spells it."""
        return self.request.__name__.removesuffix("Request")


class Registry:
    """The served APIs by key."""

    def __init__(self) -> None:
        self._served: dict[int, Served] = {}

    def add(self, served: Served) -> None:
        """Adds an API. Two handlers for one key are a bug (AssertionError)."""
        known = self._served.get(served.api_key)
        assert known is None or known.handler is served.handler, f"{served.name} has two handlers"
        self._served[served.api_key] = served

    def get(self, api_key: int) -> Served | None:
        """The API of this key, or None if it is not served."""
        return self._served.get(api_key)

    def __iter__(self) -> Iterator[Served]:
        """All APIs, in the order of their keys."""
        return iter([self._served[key] for key in sorted(self._served)])

    def __len__(self) -> int:
        return len(self._served)

    def enabled(self, *, unstable_versions: bool) -> Registry:
        """The APIs of a broker, with or without Kafka's unstable versions."""
        found = Registry()
        for served in self:
            found.add(served.enabled(unstable_versions=unstable_versions))
        return found


REGISTRY = Registry()


def serves(
    request: type,
    *,
    versions: str,
    advertised: str | None = None,
    pipelined: bool = False,
    forwarded: bool = False,
    enveloped: bool = False,
    internal: bool = False,
    unstable: bool = False,
    registry: Registry = REGISTRY,
) -> Callable[[HandlerT], HandlerT]:
    """Registers the decorated function as the handler of `request` in `versions` ("4-18" or "3").

    `forwarded`: the controller answers it; `enveloped`: the handler itself sends on what is the controller's;
    `unstable`: Kafka calls the highest version unstable.
    """
    lowest, highest = version_range(versions)

    def register(handler: HandlerT) -> HandlerT:
        registry.add(
            Served(
                api_key=api_key_of(request),
                request=request,
                lowest=lowest,
                highest=highest,
                advertised=version_range(advertised) if advertised else (lowest, highest),
                handler=at_the_controller(handler) if forwarded else handler,
                pipelined=pipelined,
                forwarded=forwarded or enveloped,
                internal=internal,
                unstable=unstable,
            )
        )
        return handler

    return register


def at_the_controller(handler: Handler) -> Handler:
    """The handler where this broker is the active controller, else the way there."""

    @wraps(handler)
    def handle(request: Any, context: RequestContext) -> HandlerResult:
        broker = context.broker
        if broker.metadata_driver.is_active:
            return handler(request, context)
        return broker.member.requests.forward(
            request, context.header, context.client_host, context.principal
        )

    return handle


def version_range(text: str) -> tuple[int, int]:
    """The two ends of "4-18"; a single version is both."""
    lowest, _, highest = text.partition("-")
    ends = int(lowest), int(highest or lowest)
    assert 0 <= ends[0] <= ends[1], f"no version range: {text}"
    return ends
