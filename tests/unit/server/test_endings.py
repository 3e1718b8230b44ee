"""How connections end: nothing of one that is gone waits for the collector; who fails is counted once, and waits."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.registry import REGISTRY
from broker.security.authentication.mechanisms import PlainServer
from broker.security.authentication.sasl import OfferedMechanism, SaslServer
from broker.server.authentication import Authentication
from broker.server.connection import ServerConnection
from broker.server.dispatch import Dispatcher
from broker.server.tls_handshake import TlsHandshake
from broker.transport.alerts import AlertingContext
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    MetadataRequest,
    SaslHandshakeRequest,
)
from kafka_ds.security.secret import Secret
from tests.certificates import Authority
from tests.fakes.clock import ManualClock
from tests.fakes.kafka_broker import broker_of
from tests.loops import in_loop, pass_time, turns, until
from tests.unit.server.net_harness import FakeTransport, Harness, answers, api_versions, feed, frame
from tests.unit.transport.loops import HOST, LOOPS, TIMEOUT_S

RIGHT, WRONG = b"\0alice\0alice-secret", b"\0alice\0wrong"
NO_LENGTH = struct.pack(">i", 2**31 - 1)
DELAY_S = 20  # less than there is for all of it
HANDSHAKE, BARE_HANDSHAKE = (
    encode_request(SaslHandshakeRequest(mechanism="PLAIN"), version, 1) for version in (1, 0)
)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def with_sasl(harness: Harness) -> tuple[ServerConnection, FakeTransport]:
    """A connection whose client must authenticate with PLAIN."""
    known = {"alice": Secret("alice-secret")}
    authenticator = Authentication(
        SaslServer({"PLAIN": OfferedMechanism(new=lambda: PlainServer(known))}),
        Dispatcher(REGISTRY, broker_of(), harness.metrics),
        harness.metrics,
        clock=ManualClock(0),
        delay_ms=DELAY_S * 1_000,
    )
    return harness.connect(authenticator=authenticator)


# -- what is left --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "said"),
    [(Harness.connect, api_versions(1)), (with_sasl, HANDSHAKE)],
    ids=["open", "sasl"],
)
@in_loop
async def test_nothing_holds_a_connection_that_has_ended(
    no_collector: None,
    begin: Callable[[Harness], tuple[ServerConnection, FakeTransport]],
    said: bytes,
) -> None:
    connection, transport = begin(Harness())
    feed(connection, said)
    transport.close()
    await turns()
    connection.abort()
    connection.close()
    connection.drain()
    transport_left = weakref.ref(transport)
    authenticator = connection.authenticator
    door_left = weakref.ref(authenticator) if authenticator is not None else lambda: None
    del connection, transport, authenticator
    assert transport_left() is None and door_left() is None


def in_and_out(context: ssl.SSLContext, theirs: socket.socket) -> None:
    with context.wrap_socket(theirs, server_hostname=HOST) as safe:
        safe.sendall(api_versions(1))
        assert safe.recv(1)


def without_certificate(context: ssl.SSLContext, theirs: socket.socket) -> None:
    with pytest.raises(ssl.SSLError), context.wrap_socket(theirs, server_hostname=HOST) as safe:
        safe.recv(1)


def without_tls(context: ssl.SSLContext, theirs: socket.socket) -> None:
    theirs.sendall(bytes.fromhex("0000000a00120000000000ff") + b"\xff\xff")
    assert theirs.recv(1) == b""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("client", [in_and_out, without_certificate, without_tls])
def test_nothing_holds_who_came_by_tls(
    tmp_path: Path,
    no_collector: None,
    client: Callable[[ssl.SSLContext, socket.socket], None],
    loop: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    authority = Authority(tmp_path)
    context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker").both_file)
    if client is without_certificate:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    security: Any = SimpleNamespace(context=context, uses_tls=True, uses_sasl=True)
    theirs_context = ssl.create_default_context(cafile=str(authority.file))

    async def come(harness: Harness) -> weakref.ref[TlsHandshake]:
        connections = harness.server.connections
        with socket.create_server((HOST, 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        accepted.setblocking(False)
        theirs.settimeout(TIMEOUT_S)
        new = partial(ServerConnection, connections, harness.dispatcher, "PLAINTEXT", security)
        entered = TlsHandshake(connections, security, new, accepted)
        with theirs:
            await asyncio.to_thread(client, theirs_context, theirs)
        await until(lambda: not connections)
        entered.abort()
        entered.close()
        return weakref.ref(entered)

    async def run() -> None:
        harness = Harness()
        connections = harness.server.connections
        entrance = await come(harness)
        await turns()
        assert entrance() is None
        there = [each for each in gc.get_objects() if type(each) is ServerConnection]
        assert not [each for each in there if connections in gc.get_referents(each)]
        assert harness.metrics.failed_authentications == (client is not in_and_out)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
    assert ("SSL handshake failed: the client does not use TLS" in caplog.text) == (
        client is without_tls
    )


# -- who fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "failed", "succeeded"),
    [
        (BARE_HANDSHAKE + frame(WRONG) + NO_LENGTH, 1, 0),
        (BARE_HANDSHAKE + frame(RIGHT) + NO_LENGTH, 0, 1),
        (BARE_HANDSHAKE + NO_LENGTH, 1, 0),
        (NO_LENGTH, 1, 0),
    ],
    ids=["wrong", "right", "none", "nothing"],
)
@in_loop
async def test_a_length_that_none_has_counts_by_what_came_before_it(
    said: bytes, failed: int, succeeded: int
) -> None:
    harness = Harness()
    connection, transport = with_sasl(harness)
    feed(connection, said)
    await pass_time(DELAY_S)
    assert transport.is_closing()
    metrics = harness.metrics
    assert (metrics.failed_authentications, metrics.authentications) == (failed, succeeded)


FAILURES = {
    "bare": BARE_HANDSHAKE + frame(WRONG),
    "other": encode_request(MetadataRequest(topics=[]), 9, 1),
    "amid": HANDSHAKE + encode_request(MetadataRequest(topics=[]), 9, 2),
    "length": NO_LENGTH,
}


@pytest.mark.parametrize("what", FAILURES)
@in_loop
async def test_nothing_that_a_client_does_shortens_its_delay(what: str) -> None:
    harness = Harness()
    connection, transport = with_sasl(harness)
    feed(connection, FAILURES[what])
    await turns()
    assert not transport.is_reading
    connection.buffer_updated(5)  # what was read by then
    assert connection.eof_received()
    await turns()
    assert not transport.is_closing()
    await pass_time(DELAY_S)
    assert transport.is_closing()
    assert harness.metrics.failed_authentications == 1


# -- what is answered ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        encode_request(ApiVersionsRequest(), 0, 2),
        encode_request(FetchRequest(max_wait_ms=1, min_bytes=1, topics=[]), 12, 2),
    ],
    ids=["ApiVersions", "Fetch"],
)
@in_loop
async def test_who_asks_for_something_else_than_its_token_is_told_late(request_: bytes) -> None:
    connection, transport = with_sasl(Harness())
    feed(connection, HANDSHAKE + request_ + api_versions(3))
    await turns()
    assert [number for number, _ in answers(transport.written)] == [1]
    await pass_time(DELAY_S)
    (_, (number, body)) = answers(transport.written)
    assert number == 2 and struct.pack(">h", ErrorCode.ILLEGAL_SASL_STATE) in body
    assert transport.is_closing()


@pytest.mark.parametrize(
    "request_", [bytes(3), struct.pack(">hhi", 999, 0, 2), struct.pack(">hhi", 3, 99, 2)]
)
@in_loop
async def test_what_is_no_request_of_ours_fails_late_without_an_answer(request_: bytes) -> None:
    harness = Harness()
    connection, transport = with_sasl(harness)
    feed(connection, HANDSHAKE + frame(request_))
    await turns()
    assert not transport.is_closing() and harness.metrics.failed_authentications == 1
    await pass_time(DELAY_S)
    assert [number for number, _ in answers(transport.written)] == [1]
    assert transport.is_closing()
