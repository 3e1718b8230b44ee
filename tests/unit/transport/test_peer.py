"""A connection to another broker: answers find their questions; whatever goes wrong is one error for all who wait."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from broker.transport import peer
from broker.transport.peer import PeerConnection, PeerLate, PeerUnreachable
from kafka_ds.process.system import SystemNetwork
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.frame import encode_response
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataResponse,
)
from kafka_ds.protocol.messages.cluster import ApiVersion
from kafka_ds.protocol.types import message_info
from tests.fakes.scripted_broker import frame_of, next_request
from tests.loops import in_loop

METADATA_KEY = message_info(MetadataRequest).key or 0
ADVERTISED = [ApiVersion(api_key=METADATA_KEY, min_version=0, max_version=9)]
NEWEST = message_info(ApiVersionsRequest).versions.last


class FakePeer:
    """A broker whose frames the test writes; it answers ApiVersions by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.versions_asked: list[int] = []

    async def question(self) -> Any:
        """The header of the next request that came."""
        return (await next_request(self.reader))[0]

    def answer(self, header: Any, message: Any, version: int | None = None) -> None:
        self.writer.write(frame_of(message, header, version))

    async def negotiate(self, *, newest: int = NEWEST) -> None:
        """Answers ApiVersions as a broker that knows it up to `newest` does (KIP-511)."""
        while True:
            header = await self.question()
            self.versions_asked.append(header.api_version)
            if header.api_version <= newest:
                self.answer(header, ApiVersionsResponse(api_keys=ADVERTISED))
                return
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=ADVERTISED
            )
            self.answer(header, refusal, 0)


def named(cluster_id: str) -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[], controller_id=1, cluster_id=cluster_id)


QUESTION = MetadataRequest(topics=None)


@contextlib.asynccontextmanager
async def peer_that(
    acts: Callable[[FakePeer], Awaitable[None]], *, timeout_ms: int = 30_000
) -> AsyncIterator[PeerConnection]:
    """A connection to a fake peer; the connection is closed at the end and the peer's errors are raised."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await acts(FakePeer(reader, writer))
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    connection = None
    try:
        connection = await PeerConnection.connect(
            SystemNetwork(),
            host,
            port,
            client_id="broker-1",
            timeout_ms=timeout_ms,
        )
        yield connection
        connection.close()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await done
    finally:
        if connection is not None:
            connection.close()
        server.close()


@in_loop
async def test_answers_find_their_questions_whatever_their_order() -> None:
    async def acts(fake: FakePeer) -> None:
        await fake.negotiate()
        first, second = await fake.question(), await fake.question()
        assert (first.client_id, first.api_version) == ("broker-1", 9)
        fake.answer(second, named("second"))
        fake.answer(first, named("first"))
        await fake.question()

    async with peer_that(acts) as connection:
        answers = await asyncio.gather(
            connection.send(QUESTION, timeout_ms=30_000),
            connection.send(QUESTION, timeout_ms=30_000),
        )
        assert [answer.cluster_id for answer in answers] == ["first", "second"]
        assert connection.is_open


@in_loop
async def test_a_peer_that_knows_only_old_api_versions_is_asked_again() -> None:
    seen: list[int] = []

    async def acts(fake: FakePeer) -> None:
        await fake.negotiate(newest=0)
        seen.extend(fake.versions_asked)

    async with peer_that(acts) as connection:
        assert connection.version_of(MetadataRequest) == 9
    assert seen == [NEWEST, 0]


@in_loop
async def test_an_api_that_is_not_advertised_is_asked_in_our_highest_version() -> None:
    async with peer_that(FakePeer.negotiate) as connection:
        last = message_info(DescribeClusterRequest).versions.last
        assert connection.version_of(DescribeClusterRequest) == last


@in_loop
async def test_no_common_version_is_an_error_that_leaves_the_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = [ApiVersion(api_key=METADATA_KEY, min_version=900, max_version=901)]
    monkeypatch.setattr(__name__ + ".ADVERTISED", old)

    async with peer_that(FakePeer.negotiate) as connection:
        for _ in range(peer.UNANSWERED_MAX + 1):
            with pytest.raises(KafkaError, match="UNSUPPORTED_VERSION"):
                await connection.send(QUESTION, timeout_ms=30_000)


@in_loop
async def test_a_late_answer_closes_the_connection_for_all() -> None:
    async def acts(fake: FakePeer) -> None:
        await fake.negotiate()
        await fake.question()
        await fake.question()
        await fake.question()

    async with peer_that(acts) as connection:
        patient = asyncio.ensure_future(connection.send(QUESTION, timeout_ms=600_000))
        with pytest.raises(PeerLate, match="did not answer MetadataRequest within 20 ms"):
            await connection.send(QUESTION, timeout_ms=20)
        with pytest.raises(PeerUnreachable, match="did not answer"):
            await patient
        assert not connection.is_open
        with pytest.raises(PeerUnreachable):
            await connection.send(QUESTION, timeout_ms=30_000)


async def _go_away(fake: FakePeer, header: Any) -> None:
    fake.writer.close()


async def _answer_twice(fake: FakePeer, header: Any) -> None:
    fake.answer(header._replace(correlation_id=header.correlation_id + 5), named("x"))
    await fake.question()


async def _answer_cut(fake: FakePeer, header: Any) -> None:
    whole = b"".join(encode_response(named("x"), header.api_version, header.correlation_id))
    fake.writer.write(struct.pack(">i", len(whole) - 6) + whole[4:-2])
    await fake.question()


async def _answer_half(fake: FakePeer, header: Any) -> None:
    whole = b"".join(encode_response(named("x"), header.api_version, header.correlation_id))
    fake.writer.write(whole[:-2])
    fake.writer.close()


async def _answer_negative(fake: FakePeer, header: Any) -> None:
    fake.writer.write(struct.pack(">i", -5))
    await fake.question()


@pytest.mark.parametrize(
    "wrong", [_go_away, _answer_twice, _answer_cut, _answer_half, _answer_negative]
)
def test_whatever_is_wrong_with_an_answer_is_one_error(
    wrong: Callable[[FakePeer, Any], Awaitable[None]],
) -> None:
    @in_loop
    async def run() -> None:
        async def acts(fake: FakePeer) -> None:
            await fake.negotiate()
            await wrong(fake, await fake.question())

        async with peer_that(acts) as connection:
            with pytest.raises(PeerUnreachable):
                await connection.send(QUESTION, timeout_ms=30_000)
            assert not connection.is_open

    run()


@in_loop
async def test_who_gives_up_leaves_the_connection_to_the_others() -> None:
    may_answer = asyncio.Event()

    async def acts(fake: FakePeer) -> None:
        await fake.negotiate()
        first, second = await fake.question(), await fake.question()
        await may_answer.wait()
        fake.answer(first, named("first"))
        fake.answer(second, named("second"))
        await fake.question()

    async with peer_that(acts) as connection:
        gone = asyncio.ensure_future(connection.send(QUESTION, timeout_ms=30_000))
        stays = asyncio.ensure_future(connection.send(QUESTION, timeout_ms=30_000))
        await asyncio.sleep(0)
        gone.cancel()
        may_answer.set()
        assert (await stays).cluster_id == "second"
        assert connection.is_open


@in_loop
async def test_more_questions_than_fit_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "UNANSWERED_MAX", 2)

    async def acts(fake: FakePeer) -> None:
        await fake.negotiate()
        for _ in range(3):
            first, second = await fake.question(), await fake.question()
            fake.answer(first, named("x"))
            fake.answer(second, named("x"))

    async with peer_that(acts) as connection:
        asked = [connection.send(QUESTION, timeout_ms=30_000) for _ in range(6)]
        assert len(await asyncio.gather(*asked)) == 6


@in_loop
async def test_nobody_there_is_unreachable() -> None:
    network = SystemNetwork()
    listener = network.bind("127.0.0.1", 0)
    host, port = listener.address
    await listener.close()
    with pytest.raises(PeerUnreachable) as refused:
        await PeerConnection.connect(network, host, port, client_id="x", timeout_ms=30_000)
    assert not isinstance(refused.value, PeerLate)


@in_loop
async def test_a_peer_that_says_nothing_is_unreachable() -> None:
    async def acts(fake: FakePeer) -> None:
        await fake.reader.read()

    with pytest.raises(PeerLate, match="within 30 ms"):
        async with peer_that(acts, timeout_ms=30):
            pass
