"""Limits: the number of connections, their creation rate, and the memory of requests."""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.config.endpoints import overrides_of
from broker.config.listeners import listener_key
from broker.principal import ANONYMOUS
from broker.security.quotas.address_rates import ADDRESSES_MAX, AddressRates
from broker.server.connection import ServerConnection
from broker.server.connection_limits import WAIT_SECONDS_MAX, ConnectionLimits, LimitSettings
from broker.server.tls_handshake import TlsHandshake
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.frame_assembler import SCRATCH_BYTES
from kafka_ds.security.token_file import TokenUnreadable, read_token
from tests.loops import in_loop, until
from tests.unit.security.quota_entities import entity
from tests.unit.server.net_harness import Harness, api_versions, feed, ids, settle

NO_LIMIT = 2**31 - 1


def limits(**settings: object) -> ConnectionLimits:
    given: dict[str, object] = {
        "connections_max": NO_LIMIT,
        "per_host_max": NO_LIMIT,
        "per_second_max": NO_LIMIT,
        **settings,
    }
    return ConnectionLimits(LimitSettings(**given))  # type: ignore[arg-type]


def test_each_limit_says_its_name() -> None:
    of_all = limits(connections_max=1, protected_listener="INSIDE")
    of_all.opened("a", "OUTSIDE")
    assert of_all.refusal("b", "OUTSIDE") == "max.connections=1 is reached"
    assert of_all.refusal("b", "INSIDE") is None and of_all.is_full
    of_all.closed("a", "OUTSIDE")
    assert of_all.refusal("b", "OUTSIDE") is None
    of_listener = limits(of_listener={"OUTSIDE": 1})
    of_listener.opened("a", "OUTSIDE")
    why = of_listener.refusal("b", "OUTSIDE")
    assert why is not None and "listener.name.outside.max.connections=1" in why
    assert of_listener.refusal("b", "INSIDE") is None
    of_host = limits(per_host_max=1, of_host={"b": 2})
    of_host.opened("a", "X")
    of_host.opened("b", "X")
    assert of_host.refusal("a", "X") == "max.connections.per.ip=1 is reached"
    assert of_host.refusal("b", "X") is None
    of_host.opened("b", "X")
    assert of_host.refusal("b", "X") == "max.connections.per.ip.overrides=2 is reached"


def test_more_than_the_rate_have_to_wait_their_turn() -> None:
    slow = limits(per_second_max=2)
    waits = [max(0.0, slow.delay_s("X", 200.0)) for _ in range(5)]
    assert waits == [0.0, 0.0, 0.0, 0.5, 1.0]
    own = limits(listener_per_second_max={"X": 1})
    assert [max(0.0, own.delay_s("X", 50.0)) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert own.delay_s("Y", 50.0) <= 0


def test_nobody_waits_for_ever_and_brokers_not_for_clients() -> None:
    slow = limits(per_second_max=1, protected_listener="INSIDE")
    waits = [slow.delay_s("OUTSIDE", 5.0) for _ in range(500)]
    assert max(waits) == waits[-1] == WAIT_SECONDS_MAX
    assert slow.delay_s("INSIDE", 5.0) == 0.0
    assert slow.delay_s("OUTSIDE", 5.0 + WAIT_SECONDS_MAX) <= 1.0, "a debt that was bounded is paid"


@in_loop
async def test_the_longest_of_what_was_told_counts() -> None:
    connection, transport = Harness().connect()
    connection.mute(1)
    connection.mute(600_000)
    connection.mute(1)
    await asyncio.sleep(0.05)
    feed(connection, api_versions(7))
    assert not ids(transport), "it is not heard yet"
    connection.abort()


@in_loop
async def test_who_is_gone_before_it_is_let_in_leaves_nothing_behind() -> None:
    harness = Harness()
    accepted = socket.socket()  # Not connected, as one that was reset.
    connections, security = harness.server.connections, SimpleNamespace(name="PLAINTEXT")
    new = partial(ServerConnection, connections, harness.dispatcher, "PLAINTEXT")
    TlsHandshake(connections, security, new, accepted)  # type: ignore[arg-type]
    assert accepted.fileno() == -1
    assert not harness.server.connections


def test_a_bad_file_of_a_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    for name, why in (("bad", "is not UTF-8"), ("none", "no such file")):
        with pytest.raises(TokenUnreadable, match=f"tokenFile=.*{name}: {why}"):
            read_token(str(tmp_path / name))


def test_overrides_are_read() -> None:
    assert overrides_of("a:1, [::1]:2") == {"a": 1, "::1": 2}
    with pytest.raises(ConfigError, match="a is not"):
        overrides_of("a")


def test_names_of_listeners_settings() -> None:
    key = listener_key("listener.name.a.b.scram-sha-512.sasl.jaas.config")
    assert key is not None and (key.listener, key.mechanism) == ("a.b", "SCRAM-SHA-512")
    assert key.setting.sensitive and not key.setting.changeable
    key = listener_key("listener.name.out.ssl.keystore.location")
    assert key is not None and key.setting.changeable and key.mechanism is None
    for name in (
        "listener.name.OUT.ssl.keystore.location",
        "listener.name.out.sasl.jaas.config",
        "listener.name.out.num.partitions",
        "ssl.keystore.location",
    ):
        assert listener_key(name) is None, name


@in_loop
async def test_a_request_begins_when_there_is_memory() -> None:
    large = 1 << 20
    harness = Harness(f"queued.max.request.bytes={large}")
    memory = harness.server.connections.memory
    assert memory is not None
    first, first_transport = harness.connect()
    second, second_transport = harness.connect()
    third, third_transport = harness.connect()
    start = struct.pack(">i", large) + bytes(SCRATCH_BYTES // 2)
    feed(first, start)
    assert memory.used_bytes == large and not memory.has_room
    shown = {
        metric.name: value for metric, _, value in harness.server.connections.metrics.samples()
    }
    assert shown["kafka_network_socketserver_memorypoolavailable"] == 0
    assert shown["kafka_network_socketserver_memorypoolused"] == large
    # The second one's length is a promise that nobody takes; it is not read any further.
    feed(second, start)
    assert memory.used_bytes == large and not second_transport.is_reading
    # What is small is answered; then this one waits, too.
    feed(third, api_versions(7))
    assert ids(third_transport) == [7]
    assert first_transport.is_reading
    first.abort()
    await settle()
    assert memory.used_bytes == large  # the second one's now
    assert second_transport.is_reading
    second.abort()
    await settle()
    assert memory.used_bytes == 0 and third_transport.is_reading


@in_loop
async def test_who_has_not_authenticated_takes_nothing_of_the_memory_of_all() -> None:
    large = 1 << 20
    harness = Harness(f"queued.max.request.bytes={large}")
    memory = harness.server.connections.memory
    assert memory is not None
    heard: list[int] = []

    def handle(frame: memoryview, *_: object) -> None:
        heard.append(len(frame))
        if len(heard) == 2:
            authenticator.principal = ANONYMOUS

    authenticator = SimpleNamespace(handle=handle, failure=None, principal=None, has_session=True)
    unknown, transport = harness.connect(authenticator=authenticator)
    feed(unknown, struct.pack(">i", large // 4) + bytes(SCRATCH_BYTES))
    assert memory.used_bytes == 0
    # Nor does it wait for who takes all of it.
    known, _ = harness.connect()
    feed(known, struct.pack(">i", large) + bytes(SCRATCH_BYTES // 2))
    assert not memory.has_room
    feed(unknown, bytes(large // 4 - SCRATCH_BYTES) + struct.pack(">i", 5) + bytes(5))
    assert heard == [large // 4, 5] and memory.used_bytes == large
    # From then on it is as all others.
    feed(unknown, struct.pack(">i", large) + bytes(SCRATCH_BYTES // 2))
    assert not transport.is_reading
    known.abort()
    await settle()
    assert transport.is_reading and memory.used_bytes == large
    unknown.abort()
    await settle()
    assert memory.used_bytes == 0


def test_an_address_has_its_own_rate_or_the_one_of_all_others() -> None:
    rates = AddressRates(samples=11, window_ms=1_000)
    assert rates.wait_ms("10.0.0.1", 0) == 0, "there is no quota"
    rate = "connection_creation_rate"
    rates.replace({entity(ip="10.0.0.1"): {rate: 2.0}, entity(ip=None): {rate: 1.0},
                   entity(user="u"): {"request_percentage": 1.0}})  # fmt: skip
    assert [rates.wait_ms("10.0.0.1", 0) for _ in range(21)] == [0] * 20 + [500]
    assert rates.wait_ms("10.0.0.1", 499) > 0, (
        "who was kept out did not count, and still there are 20"
    )
    assert rates.wait_ms("10.0.0.1", 10_500) == 0
    assert [rates.wait_ms("::1", 0) > 0 for _ in range(11)] == [False] * 10 + [True]
    for number in range(ADDRESSES_MAX):
        rates.wait_ms(f"address {number}", 0)
    assert rates.wait_ms("::1", 0) == 0, "it was forgotten"
    rates.replace({})
    assert all(rates.wait_ms("::1", 0) == 0 for _ in range(50))
    rates.replace({entity(ip="::ffff:10.0.0.9"): {rate: 1.0}})
    assert [rates.wait_ms("10.0.0.9", 0) > 0 for _ in range(11)] == [False] * 10 + [True]


@in_loop
async def test_who_comes_by_version_4_to_a_socket_of_version_6_has_its_own_address() -> None:
    harness = Harness("max.connections.per.ip.overrides=10.0.0.1:1,0:0:0:0:0:0:0:1:0")
    connection, _ = harness.connect("::ffff:10.0.0.1")
    assert (connection.host, connection.peer.partition(":")[0]) == ("10.0.0.1", "10.0.0.1")
    for host, is_let_in in (("::ffff:10.0.0.1", False), ("::1", False), ("::ffff:10.0.0.2", True)):
        _, transport = harness.connect(host)
        assert transport.is_closing() is not is_let_in


@in_loop
async def test_who_comes_too_fast_is_kept_waiting_and_sent_away() -> None:
    harness = Harness("quota.window.num=1")
    rates = harness.server.connections.address_rates
    rates.replace({entity(ip="10.0.0.1"): {"connection_creation_rate": 0.99}})
    _, transport = harness.connect()
    assert not transport.is_reading and not transport.is_closing()
    assert not harness.server.connections and harness.metrics.connections_rejected == 1
    _, other = harness.connect("10.0.0.2")
    assert other.is_reading and len(harness.server.connections) == 1
    await until(lambda: transport.is_closing())
    rates.replace({entity(ip=None): {"connection_creation_rate": 0.1}})
    _, late = harness.connect()
    entered, left = socket.socketpair()
    with entered, left:
        assert harness.server.connections.rejects("10.0.0.3", left.close)
        await harness.server.stop()
        assert late.is_closing() and left.fileno() == -1, "nobody waits for a broker that stops"
