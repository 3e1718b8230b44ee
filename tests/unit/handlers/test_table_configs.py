"""Settings by which a topic becomes a Delta table, remains one, or ceases to be one."""

from pathlib import Path

import pytest

from broker.controller.controller import NewTopic
from broker.log.config import REMOTE_STORAGE_KEPT
from broker.metadata.topic_names import INTERNAL_TOPICS
from broker.metadata.topic_names import LAKE_DISKLESS as DISKLESS
from kafka_ds.protocol.errors import ErrorCode
from tests.in_process import batch_of, in_process
from tests.loops import in_loop
from tests.unit.handlers.config_requests import (
    APPEND,
    BROKER,
    DEFAULT,
    DELETE,
    OF_TOPIC,
    SET,
    TOPIC,
    change,
    described,
    log_of,
    replace,
)

TIERED = {"remote_log_storage_system_enable": "true", "lake_start_delay_ms": 600_000}


@in_loop
async def test_a_topic_becomes_a_table_and_does_not_cease_to_be_one_by_mistake(
    memory_path: Path,
) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        topic_id = await broker.create("t", remote_storage_enable="false")
        tier = broker.node.remote_log_manager
        assert tier is not None
        assert tier.highest_offset_in_remote_storage(topic_id, 0) is None
        assert "t" not in tier.lags()
        answer = await change(broker, TOPIC, "t", ("remote.storage.enable", SET, "true"))
        assert answer.error_code == 0
        assert "t" in tier.lags()
        answer = await change(broker, TOPIC, "t", ("remote.storage.enable", SET, "false"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "remote.log.delete.on.disable=true" in answer.error_message
        compact = ("cleanup.policy", SET, "compact"), ("remote.storage.enable", SET, "false")
        deleted = ("remote.log.delete.on.disable", SET, "true")
        answer = await change(broker, TOPIC, "t", *compact, deleted)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "cannot be compacted" in answer.error_message


@in_loop
async def test_a_table_is_compacted_only_as_a_table(memory_path: Path) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t")
        compact = ("cleanup.policy", SET, "compact")
        enable, disable = "remote.storage.enable", "remote.log.copy.disable"
        answer = await change(broker, TOPIC, "t", compact, (enable, SET, "true"))
        assert not answer.error_code
        assert log_of(broker, "t").config.copies_to_lake
        gone = ("remote.log.delete.on.disable", SET, "true")
        answer = await change(broker, TOPIC, "t", (enable, SET, "false"), gone)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "a compacted topic that is a Delta table remains one" in answer.error_message
        answer = await change(broker, TOPIC, "t", (enable, DELETE, None))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message.startswith("remote.storage.enable=false, which")
        # From here on compaction waits for no copy: what it takes would be missing in the table.
        assert not (await change(broker, TOPIC, "t", (disable, SET, "true"))).error_code
        answer = await change(broker, TOPIC, "t", (disable, SET, "false"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "would lack what compaction has removed" in answer.error_message


@pytest.mark.parametrize("way", ["set", "append", "replace"])
@in_loop
async def test_a_table_by_default_stays_one_when_it_is_compacted(
    memory_path: Path, way: str
) -> None:
    """Clients see what they would see of Apache Kafka: a setting of their own more, and no other."""
    policy, enable = "cleanup.policy", "remote.storage.enable"
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t")
        if way == "replace":
            answer = await replace(broker, "t", cleanup_policy="compact,delete")
        else:
            operation, value = (SET, "compact,delete") if way == "set" else (APPEND, "compact")
            answer = await change(broker, TOPIC, "t", (policy, operation, value))
        assert not answer.error_code, answer.error_message
        assert log_of(broker, "t").config.copies_to_lake
        assert (await described(broker, TOPIC, "t", policy)).config_source == OF_TOPIC
        told = await described(broker, TOPIC, "t", enable)
        assert (told.value, told.config_source) == ("true", DEFAULT)
        # A declaration that is made again finds nothing to do.
        for _ in range(2):
            answer = await replace(broker, "t", cleanup_policy="compact", retention_ms="5000")
            assert not answer.error_code, answer.error_message
        assert log_of(broker, "t").config.copies_to_lake
        answer = await change(broker, TOPIC, "t", (policy, SET, "delete"))
        assert "remains compacted" in answer.error_message
        answer = await change(broker, TOPIC, "t", (enable, SET, "false"))
        assert "a compacted topic that is a Delta table remains one" in answer.error_message
        kept = REMOTE_STORAGE_KEPT
        for operation, value in ((SET, "true"), (DELETE, None)):
            answer = await change(broker, TOPIC, "t", (kept, operation, value))
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert "did you mean remote.storage.enable" in answer.error_message
        # Where it was compacted from its creation on, it is a table only if it says so.
        await broker.create("state", cleanup_policy="compact")
        answer = await replace(broker, "state", cleanup_policy="compact,delete")
        assert not answer.error_code
        assert not log_of(broker, "state").config.has_table
    async with in_process(memory_path, **TIERED) as broker:
        assert log_of(broker, "t").config.copies_to_lake


@in_loop
async def test_nobody_creates_a_topic_that_was_kept(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        with pytest.raises(AssertionError, match=REMOTE_STORAGE_KEPT):
            await broker.create("t", remote_storage_kept="true")


@in_loop
async def test_a_compacted_table_remains_compacted(memory_path: Path) -> None:
    """Else segments without the tombstones that compaction took would follow what the lake has of their keys."""
    async with in_process(memory_path, **TIERED) as broker:
        compact, enable = "cleanup.policy", "remote.storage.enable"
        own = {"cleanup_policy": "compact", "remote_storage_enable": "true"}
        await broker.create("t", **own)
        disabled = ("remote.log.copy.disable", SET, "true")
        leaving = (enable, SET, "false"), ("remote.log.delete.on.disable", SET, "true")
        for others in ((), (disabled,), leaving):
            answer = await change(broker, TOPIC, "t", (compact, SET, "delete"), *others)
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert "remains compacted" in answer.error_message
        # Nor in two steps, after which copies would go on behind what was compacted meanwhile.
        assert not (await change(broker, TOPIC, "t", disabled)).error_code
        answer = await change(broker, TOPIC, "t", (compact, DELETE, None))
        assert "remains compacted" in answer.error_message
        answer = await change(broker, TOPIC, "t", (compact, SET, "compact,delete"))
        assert not answer.error_code


@in_loop
async def test_a_default_of_all_topics_does_not_end_a_table(memory_path: Path) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        policy = "log.cleanup.policy"
        await broker.create("t")
        answer = await change(broker, BROKER, "", (policy, SET, "compact"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "topic t would have cleanup.policy=compact: " in answer.error_message
        assert log_of(broker, "t").config.copies_to_lake
        own = {"cleanup_policy": "delete"}
        assert not (await replace(broker, "t", **own)).error_code
        assert not (await change(broker, BROKER, "", (policy, SET, "compact"))).error_code
        await broker.create("state", remote_storage_enable="true")
        assert log_of(broker, "state").config.is_compacted
        answer = await change(broker, BROKER, "", (policy, DELETE, None))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "topic state would have cleanup.policy=delete: " in answer.error_message
        # Settings that topics do not inherit are no concern of theirs.
        rate = ("leader.replication.throttled.rate", SET, "1000")
        assert not (await change(broker, BROKER, "1", rate)).error_code


@in_loop
async def test_internal_topics_are_no_tables(memory_path: Path) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        name, enable = "__consumer_offsets", "remote.storage.enable"
        await broker.create(name, cleanup_policy="compact", remote_storage_enable="true")
        assert not log_of(broker, name).config.has_table
        # What it was created with hinders nobody, and can be taken back.
        assert not (await change(broker, TOPIC, name, ("segment.ms", SET, "5000"))).error_code
        assert not (await change(broker, TOPIC, name, (enable, DELETE, None))).error_code
        answer = await change(broker, TOPIC, name, (enable, SET, "true"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert f"{name} is an internal topic" in answer.error_message


@in_loop
async def test_internal_topics_do_not_become_diskless(memory_path: Path) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        for name in sorted(INTERNAL_TOPICS):
            await broker.create(name)
            answer = await change(broker, TOPIC, name, (DISKLESS, SET, "true"))
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert answer.error_message == f"{DISKLESS}=true: {name} is an internal topic"


@in_loop
async def test_a_topic_ceases_to_be_a_table_if_its_rows_are_to_go(memory_path: Path) -> None:
    """KIP-950: records that are only in the lake are given up; the lake is maintained until the rows are gone."""
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        log = log_of(broker, "t")
        log.roll()
        await broker.produce("t", batch_of([b"c"]))
        log.segments.discard_oldest(1, broker.node.clock.now_ms())
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 2)
        enable, delete = "remote.storage.enable", "remote.log.delete.on.disable"
        off = (enable, SET, "false"), (delete, SET, "true")
        assert not (await change(broker, TOPIC, "t", *off)).error_code
        assert (log.log_start_offset, log.config.copies_to_lake, log.config.has_table) == (
            2, False, True,
        )  # fmt: skip
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        # Rows may be there still: it is said until it is a table again.
        answer = await change(broker, TOPIC, "t", (delete, SET, "false"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        answer = await change(broker, TOPIC, "t", (enable, SET, "true"), (delete, DELETE, None))
        assert not answer.error_code
        assert log.config.copies_to_lake
        answer = await change(broker, TOPIC, "t", ("remote.log.copy.disable", SET, "true"))
        assert not answer.error_code
        assert (log.config.copies_to_lake, log.config.remote_storage_enable) == (False, True)


@in_loop
async def test_a_topic_becomes_diskless_and_remains_it_until_it_is_said_otherwise(
    memory_path: Path,
) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t", lake_diskless="true")
        await broker.create("replicated")
        assert not (await change(broker, TOPIC, "replicated", (DISKLESS, SET, "true"))).error_code
        assert log_of(broker, "replicated").config.lake_diskless
        # A tool that declares topics does not name what it does not know.
        assert not (await replace(broker, "t", retention_ms="5000")).error_code
        assert log_of(broker, "t").config.lake_diskless
        assert not (await change(broker, TOPIC, "t", (DISKLESS, DELETE, None))).error_code
        assert log_of(broker, "t").config.lake_diskless
        assert not (await change(broker, TOPIC, "t", (DISKLESS, SET, "false"))).error_code
        assert not log_of(broker, "t").config.lake_diskless


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"remote_storage_enable": "false"}, "a diskless topic is a Delta table"),
        ({"remote_log_copy_disable": "true"}, "a diskless topic is a Delta table"),
        (
            {"cleanup_policy": "compact", "remote_storage_enable": "true"},
            "a compacted topic that exists remains replicated",
        ),
    ],
)
@in_loop
async def test_a_topic_that_cannot_become_diskless_is_told_why(
    memory_path: Path, own: dict[str, str], why: str
) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t", **own)
        answer = await change(broker, TOPIC, "t", (DISKLESS, SET, "true"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message.startswith(f"{DISKLESS}=true: {why}")
        assert not log_of(broker, "t").config.lake_diskless


@in_loop
async def test_no_topic_becomes_diskless_without_a_lake(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        answer = await change(broker, TOPIC, "t", (DISKLESS, SET, "true"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message.startswith(f"{DISKLESS}=true: a diskless topic is a Delta")


@in_loop
async def test_a_diskless_topic_does_not_begin_with_a_load(memory_path: Path) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        configs = ((DISKLESS, "true"), ("lake.load", "A" * 22))
        (result,) = await broker.node.metadata_driver.create_topics(
            [NewTopic(name="t", configs=configs)]
        )
        assert result.error == ErrorCode.INVALID_CONFIG
        assert result.message is not None
        assert result.message.startswith("lake.load: a diskless topic")


@pytest.mark.parametrize(
    "also",
    [
        {"remote.storage.enable": "false"},
        {"remote.log.copy.disable": "true"},
        {"cleanup.policy": "compact"},
    ],
)
@in_loop
async def test_a_diskless_topic_is_a_table_that_grows(
    memory_path: Path, also: dict[str, str]
) -> None:
    """Nothing else would ever take its records out of the write-ahead logs."""
    async with in_process(memory_path, **TIERED) as broker:
        topic = NewTopic(name="u", configs=((DISKLESS, "true"), *also.items()))
        (result,) = await broker.node.metadata_driver.create_topics([topic])
        assert result.error == ErrorCode.INVALID_CONFIG
        assert result.message is not None
        assert result.message.startswith("lake.diskless=true: a diskless topic is a Delta table")
        await broker.create("t", lake_diskless="true")
        for name, value in also.items():
            answer = await change(broker, TOPIC, "t", (name, SET, value))
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            why = "only from its creation on" if name == "cleanup.policy" else "is a Delta table"
            assert f"a diskless topic {why}" in answer.error_message


@in_loop
async def test_a_diskless_topic_is_compacted_from_its_creation_on_or_never(
    memory_path: Path,
) -> None:
    """While it becomes diskless its compacted log would go, and its table has what compaction has removed."""
    policy, table = "cleanup.policy", {"remote_storage_enable": "true", "lake_diskless": "true"}
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t")
        assert not (await change(broker, TOPIC, "t", (DISKLESS, SET, "true"))).error_code
        answer = await change(broker, TOPIC, "t", (policy, SET, "compact,delete"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message.startswith(f"{policy}=compact,delete: a diskless topic ")
        await broker.create("compacted", cleanup_policy="compact", **table)
        answer = await change(broker, TOPIC, "compacted", (policy, SET, "compact,delete"))
        assert not answer.error_code
        answer = await change(broker, TOPIC, "compacted", (DISKLESS, SET, "false"))
        assert answer.error_message == f"{DISKLESS}=false: a compacted diskless topic remains one"
