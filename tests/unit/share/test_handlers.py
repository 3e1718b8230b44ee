"""ShareFetch and ShareAcknowledge at a broker: sessions, waiting, restarts, aborted transactions, groups' settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.broker_metrics import broker_samples
from broker.handlers.records.fetch import SENT_BYTES_MIN
from broker.metadata.events import RECOVERING
from broker.metadata.topic_names import SHARE_GROUP_STATE_TOPIC_NAME
from broker.metrics.names import Summary
from broker.registry import ClientInformation
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.share_state import InitializeStatePartition
from kafka_ds.protocol.types import NO_UUID
from kafka_ds.records.batch import (
    ControlType,
    Record,
    build_batch,
    end_transaction_marker,
    iterate_headers,
)
from kafka_ds.segments.producers import AppendOrigin
from tests.in_process import InProcess, batch_of, in_process
from tests.loops import in_loop, until
from tests.unit.share.share_members import GROUP, Member, batch, configure, initialize

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
HAPPENS_MS = 20_000


async def topic_of(broker: InProcess, *batches: list[bytes], start: int = 0) -> bytes:
    """A topic with these batches, of which the group has a state."""
    topic_id = await broker.create("t")
    for each in batches:
        await broker.produce("t", batch_of(each))
    await initialize(broker, topic_id, start=start)
    return topic_id


@in_loop
async def test_members_share_the_records_of_a_partition(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a", b"b"], [b"c"], [b"d"])
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        response = await one.fetch(max_records=2)
        (partition,) = response.responses[0].partitions
        assert response.acquisition_lock_timeout_ms == 30_000
        assert [(a.first_offset, a.last_offset) for a in partition.acquired_records] == [(0, 1)]
        headers = [header for _, header in iterate_headers(partition.records)]
        assert [(h.base_offset, h.last_offset) for h in headers] == [(0, 1)], "no others"
        assert await two.acquire() == [(2, 3, 1)]
        assert await one.acquire() == []
        assert (await two.acknowledge(batch(2, 3, ACCEPT, RELEASE))).error_code == ErrorCode.NONE
        # What one member releases another one gets.
        assert await one.acquire(batch(0, 1, ACCEPT)) == [(3, 3, 2)]
        answer = await two.acknowledge(batch(3, 3, ACCEPT))
        assert answer.error_code == ErrorCode.INVALID_RECORD_STATE
        assert await one.acquire(batch(3, 3, REJECT)) == []
        (led,) = broker.node.share_partitions
        assert (led.machine.start_offset, led.machine.in_flight) == (4, 0)
        shown = {
            (metric.name, labels): value for metric, labels, value in broker_samples(broker.node)
        }
        acknowledged = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
        assert shown[acknowledged, ("Accept",)] == 3
        counted = ("totalsharefetch", "totalshareacknowledgement", "failedshareacknowledgement")
        names = [f"kafka_server_brokertopicmetrics_{each}requests_total" for each in counted]
        assert [shown[each, ("t",)] for each in names] == [5, 4, 1]
        partition_metrics = "kafka_server_sharepartitionmetrics_"
        counts = {
            name.removeprefix(partition_metrics): value.number
            for (name, labels), value in shown.items()
            if name.startswith(partition_metrics) and isinstance(value, Summary)
        }
        assert counts == {"inflightbatchmessagecount": 2, "fetchlocktimems": 3, "fetchlockratio": 2}
        records = shown[f"{partition_metrics}inflightbatchmessagecount", (GROUP, "t", "0")]
        assert isinstance(records, Summary) and records.total == 4
        assert shown["kafka_server_sharesessioncache_sharesessionscount", ()] == 2


@in_loop
async def test_a_fetch_waits_for_records_and_for_released_ones(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker)
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        waiting = asyncio.ensure_future(one.acquire(max_wait_ms=HAPPENS_MS))
        await until(lambda: any(led.waiting for led in broker.node.share_partitions))
        await broker.produce("t", batch_of([b"a"]))
        assert await waiting == [(0, 0, 1)]
        waiting = asyncio.ensure_future(two.acquire(max_wait_ms=HAPPENS_MS))
        await until(lambda: any(led.waiting for led in broker.node.share_partitions))
        await one.acknowledge(batch(0, 0, RELEASE))
        assert await waiting == [(0, 0, 2)]
        # Nothing comes: the time is over.
        assert await one.acquire(max_wait_ms=30) == []


@in_loop
async def test_the_first_answer_of_a_session_names_partitions_without_records(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a"])
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        assert await one.acquire(max_wait_ms=HAPPENS_MS) == [(0, 0, 1)]
        (topic,) = (await two.fetch(max_wait_ms=0)).responses
        assert [(each.partition_index, each.records) for each in topic.partitions] == [(0, b"")]
        assert (await two.fetch(max_wait_ms=0)).responses == []


@in_loop
async def test_a_fetch_waits_for_its_min_bytes(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a"])
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        waiting = asyncio.ensure_future(one.acquire(max_wait_ms=HAPPENS_MS, min_bytes=1_000))
        await until(lambda: any(led.waiting for led in broker.node.share_partitions))
        await broker.produce("t", batch_of([b"b"]))
        assert not waiting.done()
        await broker.produce("t", batch_of([bytes(1_000)]))
        assert await waiting == [(0, 2, 1)]
        # When the time is over it takes what there is; at once if it wants nothing.
        await broker.produce("t", batch_of([b"c"]))
        assert await two.acquire(max_wait_ms=50, min_bytes=1_000) == [(3, 3, 1)]
        assert await two.acquire(max_wait_ms=HAPPENS_MS, min_bytes=0) == []
        # There is more than fits.
        await broker.produce("t", batch_of([bytes(1_000)]))
        await broker.produce("t", batch_of([bytes(1_000)]))
        acquired = await two.acquire(max_wait_ms=HAPPENS_MS, min_bytes=5_000, max_bytes=1_500)
        assert acquired == [(4, 4, 1)]


@in_loop
async def test_acknowledgements_outlive_their_broker(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a", b"b", b"c", b"d"])
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 3, 1)]
        answer = await member.acknowledge(batch(0, 0, ACCEPT), batch(2, 3, ACCEPT, RELEASE))
        assert answer.error_code == ErrorCode.NONE
    async with in_process(memory_path) as broker:
        member = Member(broker, topic_id)
        await until(lambda: all(each.is_active for each in broker.node.shares.runtime.begun()))
        # What was not acknowledged was delivered by a broker that is gone, and is not known to have been.
        assert await member.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 1), (3, 3, 2)]


@in_loop
async def test_locks_expire(memory_path: Path) -> None:
    settings = {
        "group_share_min_record_lock_duration_ms": 1_000,
        "group_share_record_lock_duration_ms": 1_000,
    }
    async with in_process(memory_path, **settings) as broker:
        topic_id = await topic_of(broker, [b"a"])
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        assert await one.acquire() == [(0, 0, 1)]
        assert await two.acquire(max_wait_ms=HAPPENS_MS) == [(0, 0, 2)]
        assert (await one.acknowledge(batch(0, 0, ACCEPT))).error_code


@in_loop
async def test_sessions_are_numbered_and_end(memory_path: Path) -> None:
    async with in_process(memory_path, group_share_max_share_sessions=200) as broker:
        topic_id = await topic_of(broker, [b"a", b"b"])
        member, other = Member(broker, topic_id), Member(broker, topic_id, "other")
        answer = await member.fetch(share_session_epoch=3)
        assert answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (
            await member.acknowledge(epoch=0)
        ).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        answer = await member.fetch(batch(0, 0, ACCEPT))
        assert answer.error_code == ErrorCode.INVALID_REQUEST, "nothing was acquired yet"
        member.epoch = 0
        assert await member.acquire() == [(0, 1, 1)]
        answer = await member.fetch(share_session_epoch=5)
        assert answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        # The end of the session takes its last acknowledgements, and releases the rest.
        assert (
            await member.acknowledge(batch(0, 0, ACCEPT), epoch=-1)
        ).error_code == ErrorCode.NONE
        assert len(broker.node.share_partitions.sessions) == 0
        assert await other.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 2)]
        assert await other.acquire(batch(1, 1, ACCEPT), share_session_epoch=-1) == []
        assert (
            await other.fetch(share_session_epoch=-1)
        ).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        await until(lambda: not list(broker.node.share_partitions))


@in_loop
async def test_much_is_read_into_memory_though_the_connection_takes_files(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        value = b"v" * SENT_BYTES_MIN
        member = Member(broker, await topic_of(broker, [value], [b"b"]))
        member.connection = ClientInformation(sends_files=True)
        response = await member.fetch()
        (partition,) = response.responses[0].partitions
        assert [(a.first_offset, a.last_offset) for a in partition.acquired_records] == [(0, 1)]
        assert len(partition.records) > len(value)


@in_loop
async def test_a_lost_connection_ends_the_session_that_began_on_it(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a", b"b"])
        one, two = Member(broker, topic_id, "one"), Member(broker, topic_id, "two")
        dispatcher = broker.dispatcher
        assert await one.acquire() == [(0, 1, 1)]
        lost, one.connection = one.connection, ClientInformation()
        one.epoch = 0
        assert await one.acquire(max_wait_ms=50) == [], "they are its own already"
        dispatcher.disconnected(lost)
        assert broker.node.share_partitions.sessions.begun_on(lost) == []
        assert len(broker.node.share_partitions.sessions) == 1, "the member has another session"
        assert (await one.acknowledge(batch(0, 0, ACCEPT))).error_code == ErrorCode.NONE
        dispatcher.disconnected(one.connection)
        assert await two.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 2)]
        assert [session.key.member_id for session in broker.node.share_partitions.sessions] == [
            "two"
        ]


@in_loop
@pytest.mark.parametrize(
    ("batches", "renews"),
    [
        ([batch(1, 0, ACCEPT)], False),
        ([batch(0, 1, 7)], False),
        ([batch(0, 1)], False),
        ([batch(0, 1, ACCEPT, ACCEPT, ACCEPT)], False),
        ([batch(1, 1, ACCEPT), batch(0, 0, ACCEPT)], False),
        ([batch(0, 1, RENEW)], False),
        ([batch(0, 9, ACCEPT)], False),
    ],
)
async def test_acknowledgements_that_are_none_are_refused(
    batches: list[Any], renews: bool, memory_path: Path
) -> None:
    async with in_process(memory_path) as broker:
        member = Member(broker, await topic_of(broker, [b"a", b"b"]))
        assert await member.acquire() == [(0, 1, 1)]
        answer = await member.acknowledge(*batches, is_renew_ack=renews)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        answer = await member.acknowledge(batch(0, 1, RENEW, ACCEPT), is_renew_ack=True)
        assert answer.error_code == ErrorCode.NONE


@in_loop
async def test_a_group_begins_where_it_says(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a"], start=-1)
        member = Member(broker, topic_id)
        assert await member.acquire(max_wait_ms=50) == [], "latest"
        await broker.produce("t", batch_of([b"b"]))
        assert await member.acquire() == [(1, 1, 1)]
        await member.fetch(share_session_epoch=-1)
        await until(lambda: not list(broker.node.share_partitions))
        await configure(broker, {"share.auto.offset.reset": "earliest"})
        member.epoch = 0
        # It has begun: what is set later changes nothing.
        assert await member.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 2)]
        again = await broker.create("u")
        await broker.produce("u", batch_of([b"a"]))
        await initialize(broker, again, start=-1)
        assert await Member(broker, again, "n").acquire(max_wait_ms=HAPPENS_MS) == [(0, 0, 1)]


@pytest.mark.parametrize("is_recovering", [True, False])
@in_loop
async def test_a_group_begins_at_an_end_that_its_leader_knows(
    memory_path: Path, is_recovering: bool
) -> None:
    """A leader that compares its log with the lake, or whose followers have yet to speak, knows an old one."""
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a", b"b", b"c"], start=-1)
        led = broker.node.replica_manager.get("t", 0)
        led.leader.high_watermark = 0
        registration = broker.node.metadata.partition("t", 0)
        assert registration is not None
        epoch = registration.partition_epoch
        if is_recovering:
            led.registration_changed(
                replace(registration, leader_recovery_state=RECOVERING, partition_epoch=epoch + 1)
            )
        else:
            led.leader.epoch_start_offset = 3
        member = Member(broker, topic_id)
        assert await member.acquire(max_wait_ms=50) == []
        assert not list(broker.node.share_partitions)
        led.registration_changed(replace(registration, partition_epoch=epoch + 2))
        broker.node.replica_manager.applier.elected(led)
        assert await member.acquire(max_wait_ms=50) == []
        (share,) = broker.node.share_partitions
        assert share.machine.start_offset == 3


@in_loop
async def test_a_fetch_waits_for_a_leader_that_does_not_know_its_end(memory_path: Path) -> None:
    """Else members would ask again and again, until a dead follower has left the ISR (KIP-207)."""
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a"], start=-1)
        led = broker.node.replica_manager.get("t", 0)
        led.leader.high_watermark, led.leader.epoch_start_offset = 0, 1
        shares = broker.node.share_partitions
        fetching = asyncio.ensure_future(Member(broker, topic_id).acquire(max_wait_ms=HAPPENS_MS))
        await until(lambda: fetching.done() or led.counters.share_fetch_requests)
        await asyncio.sleep(0.01)
        assert not fetching.done()
        broker.node.replica_manager.applier.elected(led)
        await until(lambda: fetching.done() or list(shares))
        await broker.produce("t", batch_of([b"b"]))
        assert await fetching == [(1, 1, 1)]


@in_loop
async def test_aborted_records_are_delivered_only_to_those_who_read_uncommitted(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker)
        partition = broker.node.replica_manager.get("t", 0)

        def append(data: bytes, origin: Any = AppendOrigin.COORDINATOR) -> None:
            partition.append(memoryview(bytearray(data)), acks=-1, now_ms=1, origin=origin)

        records = [Record(0, 1, None, b"x"), Record(1, 1, None, b"y")]
        append(build_batch(records, producer_id=7, producer_epoch=0, is_transactional=True))
        append(
            end_transaction_marker(
                ControlType.ABORT, timestamp=1, producer_id=7, producer_epoch=0, coordinator_epoch=0
            )
        )
        await broker.produce("t", batch_of([b"z"]))
        await configure(broker, {"share.isolation.level": "read_committed"})
        member = Member(broker, topic_id)
        acquired = await member.acquire()
        while acquired[-1][1] < 3:
            acquired += await member.acquire()
        assert acquired[0][0] == 2, "the marker is the client's to skip"
        await member.acknowledge(batch(2, 3, GAP, ACCEPT))
        (led,) = broker.node.share_partitions
        assert led.machine.start_offset == 4


@in_loop
async def test_what_cannot_be_fetched_has_its_own_error(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a"])
        response = await Member(broker, NO_UUID[:-1] + b"x", "n").fetch()
        (data,) = response.responses[0].partitions
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        member = Member(broker, topic_id, partitions=2)
        response = await member.fetch(max_wait_ms=HAPPENS_MS)
        by_index = {each.partition_index: each for each in response.responses[0].partitions}
        assert by_index[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.node.replica_manager.topic_metrics.of_none.share_fetch_failures == 2
        assert broker.node.metadata.topics[SHARE_GROUP_STATE_TOPIC_NAME]


@in_loop
async def test_a_state_that_begins_again_is_loaded_again(memory_path: Path) -> None:
    """As after AlterShareGroupOffsets: the leader's writes are fenced by the state's epoch."""
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, [b"a", b"b"])
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 1, 1)]
        wanted = InitializeStatePartition(partition=0, state_epoch=1, start_offset=1)
        await broker.node.shares.persister.initialize_state(GROUP, {(topic_id, 0): wanted})
        answer = await member.acknowledge(batch(0, 1, ACCEPT))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await member.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 1)]
        assert (await member.acknowledge(batch(1, 1, ACCEPT))).error_code == ErrorCode.NONE
