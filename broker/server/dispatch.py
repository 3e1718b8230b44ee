"""Shell: decodes one request, calls its handler and encodes the response.

- All exceptions of handlers end here. KafkaError becomes the API's error response; anything else is a bug: it is logged
  with its traceback and answered with UNKNOWN_SERVER_ERROR. If the request has no response (acks=0), the connection is
  closed.
- Bytes that are not a known request raise MalformedFrame, which closes the connection. So do an unknown API and an
  unsupported version, with the exceptions in `unsupported_version`.
- A response is encoded in the handler's callback; only a handler that waits costs a task.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from broker.principal import ANONYMOUS, Principal
from broker.registry import NO_CLIENT, ClientInformation, Handler, Registry, RequestContext, Served
from broker.security.guard import guarded
from broker.security.quotas.throttle import Throttled, ThrottledRefusal, Unanswered
from broker.server.metrics import ApiCounters, NetMetrics
from broker.server.unsupported_version import refuse_unsupported
from kafka_ds.protocol.codec import decode
from kafka_ds.protocol.error_codes import error_codes
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.frame import (
    LENGTH_BYTES,
    RequestHeader,
    decode_request_header,
    encode_response,
)
from kafka_ds.protocol.messages import RESPONSES, FetchRequest
from kafka_ds.protocol.refusal import refusal_of
from kafka_ds.protocol.types import api_key_of

if TYPE_CHECKING:
    from broker.kafka_broker import KafkaBroker

log = logging.getLogger(__name__)

_FETCH = api_key_of(FetchRequest)

# An encoded response; None for a request without one.
ResponseParts: TypeAlias = list[Any] | None


class Waiting(NamedTuple):
    """A request whose handler has not finished."""

    result: Awaitable[Any]
    request: Any
    header: RequestHeader
    served: Served
    counters: ApiCounters
    arrived_s: float
    waited_since_s: float


class Unanswerable(Exception):
    """A request that fails without a response: the connection is closed."""


class Dispatcher:
    """Dispatches the requests of all connections to their handlers."""

    def __init__(self, registry: Registry, broker: KafkaBroker, metrics: NetMetrics) -> None:
        self.broker = broker
        self._metrics = metrics
        self._serve_enveloped = self.serve_enveloped
        self._served = {
            served.api_key: (
                served,
                metrics.api(served.api_key, served.name),
                RESPONSES[served.api_key],
            )
            for served in registry
        }

    def is_pipelined(self, frame: memoryview) -> bool:
        """Whether this request may start before the one before it is answered."""
        found = self._served.get(int.from_bytes(frame[:2], "big"))
        return found is not None and found[0].pipelined

    def handle(
        self,
        frame: memoryview,
        client_host: str,
        listener: str,
        arrived_s: float,
        principal: Principal = ANONYMOUS,
        client: ClientInformation = NO_CLIENT,
        handler: Handler | None = None,
    ) -> ResponseParts | Waiting:
        """Handle a request; `arrived_s` is perf_counter's time of its arrival.

        `handler` replaces the registry's; `client` is the connection's. Raises MalformedFrame or Unanswerable, which
        close the connection.
        """
        header, position = decode_request_header(frame)
        found = self._served.get(header.api_key)
        if found is None:
            raise MalformedFrame(f"unsupported API key {header.api_key}")
        served, counters, response_class = found
        if handler is not None:
            served = replace(served, handler=handler)
        version = header.api_version
        if not served.lowest <= version <= served.highest:
            _count(counters, version, frame, arrived_s)
            return self._refuse_version(served, counters, header, frame, position)
        if log.isEnabledFor(logging.DEBUG):
            who = (client_host, listener, principal.name, header.client_id)
            log.debug("%s %d from %s by %s: %s, client id %.200s", served.name, version, *who)
        request = _decoded(served, frame, version, position)
        if header.api_key == _FETCH and _is_follower(request):
            counters = self._metrics.followers
        started_s = _count(counters, version, frame, arrived_s)
        try:
            context = RequestContext(
                header,
                client_host,
                listener,
                self.broker,
                client,
                principal,
                self._serve_enveloped,
            )
            result = guarded(served, request, context, len(frame))
            if type(result) is response_class:
                parts: ResponseParts = _answered(result, header, counters)
            elif result is None or type(result) is Unanswered:
                parts = _unanswered(result, counters)
            else:
                assert isinstance(result, Awaitable), f"{served.name}: {result!r:.100}"
                now_s = perf_counter()
                counters.local_s += now_s - started_s
                return Waiting(result, request, header, served, counters, arrived_s, now_s)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is answered
            parts = _failure(served, counters, header, request, error)
        now_s = perf_counter()
        counters.local_s += now_s - started_s
        counters.times.add(now_s - arrived_s, now_s)
        return parts

    def disconnected(self, client: ClientInformation) -> None:
        """A client's connection is lost: nothing more comes from it."""
        self.broker.share_partitions.disconnected(client)

    async def serve_enveloped(
        self, frame: memoryview, client_host: str, listener: str, principal: Principal
    ) -> bytes | None:
        """The encoded response, without length prefix, to a request in an Envelope (KIP-590).

        Raises KafkaError: NOT_CONTROLLER if this broker has resigned meanwhile, INVALID_REQUEST for malformed bytes.
        """
        try:
            outcome = self.handle(frame, client_host, listener, perf_counter(), principal)
            if isinstance(outcome, Waiting):
                result, error = None, None
                try:
                    result = await outcome.result
                except Exception as raised:  # noqa: BLE001 - becomes the answer, as for any request
                    error = raised
                if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_CONTROLLER:
                    raise error
                outcome = self.finish(outcome, result, error)
        except (MalformedFrame, Unanswerable) as malformed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(malformed)) from None
        return b"".join(outcome)[LENGTH_BYTES:] if outcome is not None else None

    def answer_later(
        self, frame: memoryview, arrived_s: float, later: Callable[[], Awaitable[Any]]
    ) -> Waiting:
        """Answer a request with the result of `later` instead of its handler's.

        Raises MalformedFrame if the API or version is not supported.
        """
        header, position = decode_request_header(frame)
        found = self._served.get(header.api_key)
        version = header.api_version
        if found is None or not found[0].lowest <= version <= found[0].highest:
            raise MalformedFrame(f"unsupported API key {header.api_key} or version {version}")
        served, counters, _ = found
        request = _decoded(served, frame, version, position)
        now_s = _count(counters, version, frame, arrived_s)
        return Waiting(later(), request, header, served, counters, arrived_s, now_s)

    def finish(self, waiting: Waiting, result: Any, error: BaseException | None) -> ResponseParts:
        """Encode the result of a request that waited."""
        _, request, header, served, counters, arrived_s, waited_since_s = waiting
        now_s = perf_counter()
        counters.remote_s += now_s - waited_since_s
        counters.times.add(now_s - arrived_s, now_s)
        if error is None:
            try:
                if result is None or type(result) is Unanswered:
                    return _unanswered(result, counters)
                return _answered(result, header, counters)
            except Exception as failure:  # noqa: BLE001 - a response that cannot be encoded is a bug
                error = failure
        return _failure(served, counters, header, request, error)

    def _refuse_version(
        self,
        served: Served,
        counters: ApiCounters,
        header: RequestHeader,
        frame: memoryview,
        position: int,
    ) -> ResponseParts:
        _count_error(counters, ErrorCode.UNSUPPORTED_VERSION)
        return refuse_unsupported(served, header, frame, position)


def _decoded(served: Served, frame: memoryview, version: int, position: int) -> Any:
    # Kafka's parser ignores trailing bytes, and some clients send them: librdkafka three in Metadata and one in
    # AlterUserScramCredentials, kafka-go one in DescribeAcls.
    return decode(served.request, frame, version, position, spare_bytes_max=len(frame))


def _answered(response: Any, header: RequestHeader, counters: ApiCounters) -> list[Any]:
    """The encoded response of a handler; counts its errors, one by one, as Kafka does."""
    for code in error_codes(response):
        _count_error(counters, ErrorCode(code))
    return _encoded(response, header, counters)


def _encoded(response: Any, header: RequestHeader, counters: ApiCounters) -> list[Any]:
    parts = encode_response(response, header.api_version, header.correlation_id)
    throttle_ms = getattr(response, "throttle_time_ms", 0)
    return _throttled(parts, throttle_ms, counters) if throttle_ms else parts


def _unanswered(result: Unanswered | None, counters: ApiCounters) -> ResponseParts:
    return None if result is None else _throttled([], result.throttle_ms, counters)


def _throttled(parts: list[Any], throttle_ms: int, counters: ApiCounters) -> Throttled:
    counters.throttle_s += throttle_ms / 1000
    return Throttled(parts, throttle_ms)


def _failure(
    served: Served,
    counters: ApiCounters,
    header: RequestHeader,
    request: Any,
    error: BaseException,
) -> list[Any]:
    """The encoded response with the error, or Unanswerable."""
    if isinstance(error, KafkaError):
        code, message = error.code, error.message
    else:
        log.error(
            "%s %d from %.200s failed",
            served.name,
            header.api_version,
            header.client_id,
            exc_info=error,
        )
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
    response = refusal_of(request, header.api_version, code, message)
    for each in (error_codes(response) if response is not None else ()) or (code,):
        _count_error(counters, ErrorCode(each))
    if response is None:
        raise Unanswerable(
            f"{served.name} failed with {code.name} and has no response to say so"
        ) from None
    if isinstance(error, ThrottledRefusal) and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = error.throttle_ms
    return _encoded(response, header, counters)


def _count(counters: ApiCounters, version: int, frame: memoryview, arrived_s: float) -> float:
    """Count a request that starts; returns the time."""
    versions = counters.by_version
    versions[version] = versions.get(version, 0) + 1
    counters.bytes_in += len(frame)
    now_s = perf_counter()
    counters.queue_s += now_s - arrived_s
    return now_s


def _is_follower(request: FetchRequest) -> bool:
    state = request.replica_state
    return (state.replica_id if state is not None else request.replica_id) >= 0


def _count_error(counters: ApiCounters, code: ErrorCode) -> None:
    counters.errors[code.name] = counters.errors.get(code.name, 0) + 1
