"""A partition's coordinator at work on a real log: when answers go out, what becomes of them when the log fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator import runtime
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.offset_metadata_manager import EXPIRED_RECORDS_MAX
from broker.coordinator.group.records import encode_record
from broker.coordinator.group.shard import FetchOffsets, GroupCoordinatorShard, TopicsDeleted
from broker.coordinator.group.values import Client, CoordinatorRecord
from broker.coordinator.loads import CoordinatorState
from broker.coordinator.runtime import CoordinatorContext
from broker.log.log import Log
from broker.log.values import AppendInfo
from broker.metadata.image import MetadataImage
from broker.metadata.topic_names import GROUP_METADATA_TOPIC_NAME
from broker.replica.leader.partition import LeaderPartition
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestGroup,
)
from kafka_ds.protocol.messages.persisted import OffsetCommitKey, OffsetCommitValue
from kafka_ds.records.batch import ControlType, Record, build_batch, end_transaction_marker
from tests.loops import in_loop, until
from tests.requests import build
from tests.unit.coordinator.partition_bench import NOW_MS, PartitionBench

CLIENT = Client("c", "/127.0.0.1", 9)


class GroupsBench(PartitionBench):
    """One partition of groups."""

    def __init__(self, folder: Path, *, followers: int = 0, **config: Any) -> None:
        super().__init__(folder, GROUP_METADATA_TOPIC_NAME, followers=followers, **config)

    def runner(self, **settings: int) -> CoordinatorContext[GroupCoordinatorShard]:
        given = BrokerConfig(**{"group_initial_rebalance_delay_ms": 0, **settings})
        return self.context(
            GroupCoordinatorShard(
                lambda: given, lambda: "id", CoordinatorMetadataImage(MetadataImage())
            ),
            load_bytes=given.offsets_load_buffer_size,
            commit_timeout_ms=given.offsets_commit_timeout_ms,
        )


def commit(offset: int, group: str = "g", partitions: int = 1, **more: Any) -> OffsetCommitRequest:
    return build(
        OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        name="t",
        partitions=[
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_metadata": "",
                **more,
            }
            for index in range(partitions)
        ],
    )


def fetch(group: str = "g") -> FetchOffsets:
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)
    return FetchOffsets(group=asked, require_stable=False)


def offsets_of(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


def join(member_id: str = "", version: int = 9, **more: Any) -> tuple[JoinGroupRequest, Client]:
    request = build(
        JoinGroupRequest,
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
        **more,
    )
    return request, Client("c", "/127.0.0.1", version)


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


@in_loop
async def test_what_is_committed_at_once_is_answered_at_once(tmp_path: Path) -> None:
    runner = GroupsBench(tmp_path).runner()
    answer = runner.submit((commit(5), CLIENT))
    assert answer.topics[0].partitions[0].error_code == 0
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {("t", 0): 5}
    runner.close()


@in_loop
async def test_no_answer_goes_out_before_its_records_are_committed(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, followers=1)
    runner = bench.runner()
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {}
    first = runner.submit((commit(5), CLIENT))
    told = runner.submit((fetch(), CLIENT))
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    refused = runner.submit((heartbeat, CLIENT))
    await asyncio.sleep(0)
    assert not first.done() and not told.done() and not refused.done()
    bench.replicate()
    assert first.done() and refused.result().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert offsets_of(told.result()) == {("t", 0): 5}
    second = runner.submit((commit(6), CLIENT))
    assert not second.done()
    bench.replicate()
    assert second.done()
    runner.close()


@in_loop
async def test_who_waits_too_long_for_the_replicas_is_told(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, followers=1)
    runner = bench.runner(offsets_commit_timeout_ms=20)
    first = runner.submit((commit(5), CLIENT))
    bench.clock.ms = NOW_MS + 20
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        await asyncio.wait_for(first, 5)
    second = runner.submit((commit(6), CLIENT))
    bench.replicate()
    assert second.done(), "what was late has counted all the same"
    runner.close()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
@in_loop
async def test_a_log_that_takes_nothing_is_an_error_of_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, told: ErrorCode
) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    runner.submit((commit(5), CLIENT))

    def fail(*_: object, **__: object) -> None:
        raise KafkaError(code)

    with monkeypatch.context() as broken:
        broken.setattr(LeaderPartition, "append", fail)
        assert code_of(lambda: runner.submit((commit(6), CLIENT))) is told
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {("t", 0): 5}
    runner.close()


@in_loop
async def test_a_record_that_no_batch_may_hold_changes_nothing(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, max_message_bytes=2_000)
    runner = bench.runner()
    large = commit(5)
    large.topics[0].partitions[0].committed_metadata = "x" * 4_000
    assert code_of(lambda: runner.submit((large, CLIENT))) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert bench.log.log_end_offset == 0


@pytest.mark.parametrize("segment_bytes", [1 << 20, 3_000])
@in_loop
async def test_very_many_records_go_into_several_batches(
    tmp_path: Path, segment_bytes: int
) -> None:
    """Also where all of them are larger than a segment."""
    bench = GroupsBench(tmp_path, max_message_bytes=2_000, segment_bytes=segment_bytes)
    runner = bench.runner()
    runner.submit((commit(5, partitions=100), CLIENT))
    assert bench.log.log_end_offset == 100
    assert len(offsets_of(runner.submit((fetch(), CLIENT)))) == 100
    runner.close()
    again = bench.runner()
    await until_loaded(again)
    assert len(offsets_of(again.submit((fetch(), CLIENT)))) == 100
    again.close()


@pytest.mark.interpreted
@in_loop
async def test_of_several_batches_all_are_appended_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a group that moves to the other protocol, say, would be in memory until the coordinator moves."""
    bench = GroupsBench(tmp_path, max_message_bytes=2_000)
    runner, append = bench.runner(), Log.append

    def until_full(log: Log, records: memoryview, **more: Any) -> AppendInfo:
        if bench.log.log_end_offset or len(records) > 2_000:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return append(log, records, **more)

    with monkeypatch.context() as filling:
        filling.setattr(Log, "append", until_full)
        large = commit(5, partitions=60)
        assert code_of(lambda: runner.submit((large, CLIENT))) is ErrorCode.NOT_COORDINATOR
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {}
    assert bench.log.log_end_offset == 0
    runner.close()


async def until_loaded(runner: CoordinatorContext[GroupCoordinatorShard]) -> None:
    await until(lambda: runner.state is not CoordinatorState.LOADING)


@in_loop
async def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    for offset in range(2_000):
        runner.submit((commit(offset, group=f"g{offset % 7}"), CLIENT))
    runner.close()
    again = bench.runner()
    assert again.state is CoordinatorState.LOADING
    assert (
        code_of(lambda: again.submit((fetch(), CLIENT))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    await until_loaded(again)
    assert offsets_of(again.submit((fetch("g3"), CLIENT))) == {("t", 0): 1998}
    again.close()


@in_loop
async def test_after_a_restart_answers_wait_for_what_was_not_replicated_yet(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, followers=1)
    runner = bench.runner()
    runner.submit((commit(5), CLIENT))
    runner.close()
    again = bench.runner()
    await until_loaded(again)
    told = again.submit((fetch(), CLIENT))
    assert not told.done()
    bench.replicate()
    assert offsets_of(told.result()) == {("t", 0): 5}
    again.close()


def offset_record(group: str, offset: int) -> tuple[bytes, bytes | None]:
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=NOW_MS)
    return encode_record(CoordinatorRecord(key, value))


@in_loop
async def test_transactions_are_read_with_their_markers(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    for producer_id, group in enumerate(("committed", "aborted", "open")):
        records = [Record(0, NOW_MS, *offset_record(group, 7))]
        bench.append(
            build_batch(records, producer_id=producer_id, producer_epoch=0, is_transactional=True)
        )
        if group != "open":
            bench.append(
                end_transaction_marker(
                    ControlType.COMMIT if group == "committed" else ControlType.ABORT,
                    timestamp=NOW_MS,
                    producer_id=producer_id,
                    producer_epoch=0,
                    coordinator_epoch=0,
                )
            )
    runner = bench.runner()
    await until_loaded(runner)
    assert offsets_of(runner.submit((fetch("committed"), CLIENT))) == {("t", 0): 7}
    assert offsets_of(runner.submit((fetch("aborted"), CLIENT))) == {}
    assert offsets_of(runner.submit((fetch("open"), CLIENT))) == {}
    runner.appended_by_others()
    runner.shard.replay_end_of_transaction(2, committed=True)
    assert offsets_of(runner.submit((fetch("open"), CLIENT))) == {("t", 0): 7}
    runner.close()


@in_loop
async def test_records_of_others_are_passed_over(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    strange = [(b"\x00\x18\x00\x01g", b"\x00\x00value"), (b"x", b"y"), (None, b""), (b"", None)]
    records = [Record(i, NOW_MS, key, value) for i, (key, value) in enumerate(strange)]
    records.append(Record(len(records), NOW_MS, *offset_record("g", 7)))
    bench.append(build_batch(records))
    runner = bench.runner()
    await until_loaded(runner)
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {("t", 0): 7}
    runner.close()


@in_loop
async def test_a_value_of_a_later_kafka_keeps_the_coordinator_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = GroupsBench(tmp_path)
    key, _ = offset_record("g", 7)
    bench.append(build_batch([Record(0, NOW_MS, key, b"\x00\x63later")]))
    runner = bench.runner()
    await until_loaded(runner)
    code = code_of(lambda: runner.submit((fetch(), CLIENT)))
    assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "OffsetCommitValue 99 is not known" in caplog.text
    runner.close()


@in_loop
async def test_when_the_partition_is_led_elsewhere_everybody_is_told(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, followers=1)
    runner = bench.runner(group_initial_rebalance_delay_ms=60_000)
    joining = runner.submit(join(version=3))
    committing = runner.submit((commit(5, group="h"), CLIENT))
    bench.partition.lose()
    for future in (joining, committing):
        assert future.exception().code is ErrorCode.NOT_COORDINATOR
    assert runner.is_closed
    assert code_of(lambda: runner.submit((fetch(), CLIENT))) is ErrorCode.NOT_COORDINATOR


@in_loop
async def test_a_client_that_is_gone_is_not_missed(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path, followers=1)
    runner = bench.runner()
    answer = runner.submit((commit(5), CLIENT))
    answer.cancel()
    bench.replicate()
    assert offsets_of(runner.submit((fetch(), CLIENT))) == {("t", 0): 5}
    runner.close()


@in_loop
async def test_time_passes_without_requests(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    answer = await asyncio.wait_for(runner.submit(join(version=3)), 5)
    assert answer.generation_id == 1
    bench.clock.ms = NOW_MS + 5_000
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=answer.member_id)
    assert runner.submit((heartbeat, CLIENT)).error_code == 0
    bench.clock.ms = NOW_MS + 15_000
    runner.tick()
    assert runner.submit((heartbeat, CLIENT)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    runner.close()


@in_loop
async def test_the_life_of_a_group_is_told_as_in_kafka(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=runtime.__name__)
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    member_id = (await asyncio.wait_for(runner.submit(join(version=3)), 5)).member_id
    bench.clock.ms = NOW_MS + 10_000
    runner.tick()
    assert [each.getMessage() for each in caplog.records] == [
        "Preparing to rebalance group g in state Empty with old generation 0",
        f"Member {member_id} in group g has failed, removing it from the group",
        "Preparing to rebalance group g in state CompletingRebalance with old generation 1",
        "Group g with generation 2 is now empty",
    ]
    runner.close()


@in_loop
async def test_many_offsets_expire_in_turns(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10)
    for number in range(6):
        runner.submit((commit(5, f"g{number}", partitions=EXPIRED_RECORDS_MAX // 2 + 1), CLIENT))
    bench.clock.ms = NOW_MS + 60_000
    left = []
    while not left or left[-1]:
        runner.tick()
        left.append(len(runner.shard.state.offsets.group_ids()))
    assert left == [4, 2, 0]
    runner.close()


@in_loop
async def test_many_offsets_go_with_their_topic_in_turns(tmp_path: Path) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    for number in range(3):
        runner.submit((commit(5, f"g{number}", partitions=EXPIRED_RECORDS_MAX), CLIENT))
    groups = runner.shard.state.offsets.group_ids
    runner.run((TopicsDeleted(topics=(("t", bytes(16)),)), CLIENT))
    assert groups() == {"g1", "g2"}
    # There is a new topic of that name already, and its offsets are in use.
    runner.submit((commit(6, "g2"), CLIENT))
    runner.tick()
    assert groups() == {"g2"}
    runner.tick()
    assert offsets_of(runner.submit((fetch("g2"), CLIENT))) == {("t", 0): 6}
    runner.close()


@in_loop
async def test_topics_that_go_while_the_log_is_read_are_forgotten_afterwards(
    tmp_path: Path,
) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner()
    runner.submit((commit(5), CLIENT))
    runner.close()
    again = bench.runner()
    again.run((TopicsDeleted(topics=(("t", bytes(16)),)), CLIENT))
    await until_loaded(again)
    assert offsets_of(again.submit((fetch(), CLIENT))) == {}
    again.run((TopicsDeleted(topics=(("t", bytes(16)),)), CLIENT))
    again.close()


@in_loop
async def test_a_mistake_of_ours_concerns_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GroupsBench(tmp_path)
    runner = bench.runner(offsets_retention_check_interval_ms=10)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("a mistake")

    with monkeypatch.context() as broken:
        broken.setattr(runner.shard, "replay", fail)
        with pytest.raises(ValueError, match="a mistake"):
            runner.submit((commit(5), CLIENT))
    assert runner.open == {}
    with monkeypatch.context() as broken:
        broken.setattr(runner.shard, "tick", fail)
        with pytest.raises(ValueError, match="a mistake"):
            runner.tick()
    assert runner.timer is not None
    assert runner.submit((commit(6), CLIENT)).topics[0].partitions[0].error_code == 0
    runner.close()
