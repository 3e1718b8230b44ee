"""What answers leave out because the client may not see it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.acls import AclOperation
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from kafka_ds.protocol.messages.quorum import Cursor
from kafka_ds.protocol.messages.topics import CreatableTopic
from tests.in_process import in_process
from tests.loops import in_loop
from tests.requests import build
from tests.unit.security.acl_names import ALICE, CLUSTER, DENIED, SETTINGS, TOPIC, TXN, allow

ONE_PARTITION = {"transaction_state_log_num_partitions": 1}
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@in_loop
async def test_what_may_not_be_described_is_not_told_beside_what_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kafka.authorizer.logger")
    async with in_process(tmp_path, **SETTINGS, **ONE_PARTITION) as broker:
        for name in ("a", "b", "c"):
            await broker.create(name)
        await allow(broker, TOPIC, "a", AclOperation.READ)
        await allow(broker, TOPIC, "c", AclOperation.READ)
        await allow(broker, TXN, "t", AclOperation.WRITE)
        await allow(broker, CLUSTER, "kafka-cluster", AclOperation.CREATE)

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        page = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1)
        first = await asks(page, 0)
        assert [topic.name for topic in first.topics] == ["a"]
        assert first.next_cursor.topic_name == "c"
        page.cursor = Cursor(topic_name="c", partition_index=0)
        rest = await asks(page, 0)
        assert [topic.name for topic in rest.topics] == ["c"] and rest.next_cursor is None

        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["t"])
        async with asyncio.timeout(120):
            while (await broker.ask(find, 4)).coordinators[0].error_code:
                await asyncio.sleep(0.01)
        producer = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        async with asyncio.timeout(120):
            while (begun := await asks(producer, 4)).error_code:
                assert begun.error_code in LOADING
                await asyncio.sleep(0.01)
        adding = build(AddPartitionsToTxnRequest, 
            v3_and_below_transactional_id="t", v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[{"name": name, "partitions": [0]} for name in ("a", "b")],
        )  # fmt: skip
        added = (await broker.ask(adding, 3)).results_by_topic_v3_and_below
        assert {part.partition_error_code for t in added for part in t.results_by_partition} == {0}
        assert broker.node.metadata.topics["__transaction_state"].is_internal
        adding.v3_and_below_topics[0].name = "__transaction_state"
        internal = {
            each.name: each.results_by_partition[0].partition_error_code
            for each in (await broker.ask(adding, 3)).results_by_topic_v3_and_below
        }
        assert internal == {"__transaction_state": DENIED, "b": ErrorCode.OPERATION_NOT_ATTEMPTED}
        describe = DescribeTransactionsRequest(transactional_ids=["t"])
        assert [t.topic for t in (await asks(describe, 0)).transaction_states[0].topics] == ["a"]
        told = (await broker.ask(describe, 0)).transaction_states[0].topics
        assert [topic.topic for topic in told] == ["a", "b"]

        def new(name: str) -> CreateTopicsRequest:
            topic = build(CreatableTopic, name=name, num_partitions=2, replication_factor=1)
            return CreateTopicsRequest(topics=[topic])

        (made,) = (await asks(new("d"), 7)).topics
        assert (made.error_code, made.topic_config_error_code) == (0, DENIED)
        assert made.topic_id == broker.node.metadata.topics["d"].topic_id
        assert (made.num_partitions, made.replication_factor, made.configs) == (-1, -1, [])
        await allow(broker, TOPIC, "e", AclOperation.DESCRIBE_CONFIGS)
        (made,) = (await asks(new("e"), 7)).topics
        assert (made.topic_config_error_code, made.num_partitions) == (0, 2) and made.configs
        every = await asks(MetadataRequest(topics=None), 12)
        assert [topic.name for topic in every.topics] == ["a", "c"]
        # She was refused nothing.
        assert "alice is Denied" not in caplog.text
        await asks(build(MetadataRequest, topics=[{"name": "b"}]), 12)
        assert caplog.text.count("alice is Denied Operation = DESCRIBE") == 1
