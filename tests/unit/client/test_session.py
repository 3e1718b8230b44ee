"""A client's side of a connection, without a socket: handshakes step by step, the clock, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ds.client.session import RENEWED_AFTER, SaslRefused, Session
from kafka_ds.errors import UnsupportedByBroker
from kafka_ds.protocol.errors import ErrorCode, MalformedFrame
from kafka_ds.protocol.frame import decode_request_header, encode_response
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_ds.protocol.messages.cluster import ApiVersion
from kafka_ds.protocol.types import message_info
from kafka_ds.security.mechanisms import PlainClient
from kafka_ds.security.secret import Secret

APIS = (ApiVersionsRequest, MetadataRequest, SaslHandshakeRequest, SaslAuthenticateRequest)
QUESTION = MetadataRequest(topics=[])
ANSWER = MetadataResponse(brokers=[], topics=[], controller_id=1)


def advertised(*, but: dict[type, int] | None = None) -> list[ApiVersion]:
    """Every API that is asked for here, some only up to a version."""
    found = []
    for api in APIS:
        info = message_info(api)
        last = (but or {}).get(api, info.versions.last)
        found.append(ApiVersion(api_key=info.key or 0, min_version=0, max_version=last))
    return found


class Wire:
    """The other end: it sees the header of each request, and answers as the test says."""

    def __init__(self, **how: Any) -> None:
        self.session = Session("broker x:1", "me", **how)

    def sent(self) -> list[Any]:
        return [decode_request_header(frame[4:])[0] for frame in self.session.data_to_send()]

    def feed(self, data: bytes, now: float = 0.0) -> list[Any]:
        """What the session makes of these bytes, which come a few at a time."""
        answers = []
        while data:
            buffer = self.session.get_buffer()
            part, data = data[: min(7, len(buffer))], data[min(7, len(buffer)) :]
            buffer[: len(part)] = part
            del buffer
            answers += [answer.message for answer in self.session.received(len(part), now)]
        return answers

    def answer(
        self, header: Any, message: Any, version: int | None = None, now: float = 0.0
    ) -> Any:
        given = header.api_version if version is None else version
        return self.feed(b"".join(encode_response(message, given, header.correlation_id)), now)

    def negotiated(self, **versions: Any) -> Wire:
        self.session.negotiate(0.0, 30_000)
        (header,) = self.sent()
        self.answer(header, ApiVersionsResponse(api_keys=advertised(**versions)))
        assert self.session.is_ready and self.session.error is None
        return self


def test_a_broker_that_is_older_than_the_question_is_asked_in_its_words() -> None:
    wire = Wire()
    wire.session.negotiate(0.0, 30_000)
    (header,) = wire.sent()
    assert header.api_version == message_info(ApiVersionsRequest).versions.last
    wire.answer(
        header, ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[]), 0
    )
    (again,) = wire.sent()
    assert again.api_version == 0 and not wire.session.is_ready
    wire.answer(again, ApiVersionsResponse(api_keys=advertised(but={MetadataRequest: 5})))
    assert wire.session.is_ready
    assert wire.session.version_of(MetadataRequest) == 5
    assert wire.session.version_of(MetadataRequest, ceiling=3) == 3


def test_what_does_not_tell_its_versions_is_no_broker() -> None:
    wire = Wire()
    wire.session.negotiate(0.0, 30_000)
    for _ in range(2):
        (header,) = wire.sent()
        refusal = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        wire.answer(header, refusal)
    assert isinstance(wire.session.error, UnsupportedByBroker)


@pytest.mark.parametrize("asks_unadvertised", [False, True])
def test_an_api_that_is_not_listed_is_asked_for_between_brokers_alone(
    asks_unadvertised: bool,
) -> None:
    wire = Wire(asks_unadvertised=asks_unadvertised)
    wire.session.negotiate(0.0, 30_000)
    (header,) = wire.sent()
    wire.answer(header, ApiVersionsResponse(api_keys=[]))
    if asks_unadvertised:
        last = message_info(MetadataRequest).versions.last
        assert wire.session.version_of(MetadataRequest) == last
    else:
        with pytest.raises(UnsupportedByBroker, match="0 to -1"):
            wire.session.send(QUESTION, 0.0, 100)


def test_answers_find_their_requests_and_late_ones_are_told_by_the_clock() -> None:
    wire = Wire().negotiated()
    first = wire.session.send(QUESTION, 10.0, 2_000)
    second = wire.session.send(QUESTION, 11.0, 500)
    headers = wire.sent()
    assert wire.session.late(11.4) is None
    assert wire.session.late(11.5) is second
    assert wire.answer(headers[1], ANSWER) == [ANSWER]
    assert wire.session.late(11.5) is None and wire.session.oldest is first
    assert wire.session.late(12.0) is first


def test_a_session_that_expires_is_renewed_late_in_its_life() -> None:
    wire = Wire().negotiated()
    for began_at in (100.0, 200.0):
        exchange = PlainClient("ann", Secret("hush"))
        wire.session.authenticate("PLAIN", exchange, began_at, 30_000)
        (handshake,) = wire.sent()
        wire.answer(handshake, SaslHandshakeResponse(mechanisms=["PLAIN"]), now=began_at)
        (authenticate,) = wire.sent()
        assert not wire.session.is_ready
        done = SaslAuthenticateResponse(session_lifetime_ms=10_000)
        wire.answer(authenticate, done, now=began_at + 3)
        assert wire.session.is_ready and wire.session.error is None
        renewed_at = began_at + RENEWED_AFTER * 10
        assert not wire.session.must_renew(renewed_at - 0.1)
        assert wire.session.must_renew(renewed_at)


@pytest.mark.parametrize(
    ("handshake", "authenticate", "cause"),
    [
        (SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]), None, "protocol"),
        (SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI"]), None,
         "mechanism"),
        (SaslHandshakeResponse(mechanisms=["PLAIN"]),
         SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no"), "credentials"),
    ],
)  # fmt: skip
def test_a_refusal_names_what_is_to_blame(handshake: Any, authenticate: Any, cause: str) -> None:
    wire = Wire().negotiated()
    wire.session.authenticate("PLAIN", PlainClient("ann", Secret("hush")), 0.0, 30_000)
    for message in filter(None, (handshake, authenticate)):
        (header,) = wire.sent()
        wire.answer(header, message)
    error = wire.session.error
    assert isinstance(error, SaslRefused) and error.cause == cause and "hush" not in str(error)


def test_what_came_in_front_of_an_error_counts() -> None:
    wire = Wire().negotiated()
    wire.session.send(QUESTION, 0.0, 1_000)
    (header,) = wire.sent()
    good = b"".join(encode_response(ANSWER, header.api_version, header.correlation_id))
    assert wire.feed(good + good) == [ANSWER]
    assert isinstance(wire.session.error, MalformedFrame)
    assert "without a request" in str(wire.session.error)
