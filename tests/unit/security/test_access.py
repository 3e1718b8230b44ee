"""Access rules of every API: none is missing, refusals are reported, and the allowed part of a request is done."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import broker.handlers
from broker.kafka_broker import KafkaBroker
from broker.metadata.acls import AclOperation
from broker.metadata.image import MetadataImage
from broker.principal import (
    ANONYMOUS,
    Principal,
    decode_principal,
    encode_principal,
    principal_of,
)
from broker.registry import NO_CLIENT, REGISTRY, RequestContext, Served
from broker.security.authorization.access import (
    ACCESS,
    CODES,
    AuthorizeRequest,
    FilterRequest,
    FilterResponse,
)
from broker.security.authorization.authorizer import Authorizer
from broker.security.guard import guarded
from broker.server.dispatch import Unanswerable
from kafka_ds.protocol.errors import ErrorCode, KafkaError, MalformedFrame
from kafka_ds.protocol.frame import RequestHeader, encode_response
from kafka_ds.protocol.messages import (
    AddPartitionsToTxnRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    EnvelopeRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.data import FetchTopic
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.protocol.refusal import refusal_of
from tests.fakes.kafka_broker import OpenSecurity, broker_of
from tests.in_process import (
    batch_of,
    fetch_request,
    in_process,
    in_process_cluster,
    produce_request,
)
from tests.loops import in_loop
from tests.requests import build
from tests.unit.security.acl_names import ALICE, CLUSTER, DENIED, GROUP, SETTINGS, TOPIC, TXN, allow
from tests.wire.random_messages import random_message

SERVED = list(REGISTRY)
assert broker.handlers  # It has registered them.
# Whoever connects may ask these; what they tell is the handler's matter.
OPEN = {
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata", "DescribeCluster",
    "GetTelemetrySubscriptions", "PushTelemetry", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken", "DescribeDelegationToken",
}  # fmt: skip
# Nothing of the request is refused: of the answer something is left out.
SHOWN = {"ListGroups", "ListTransactions"}
# Ids drawn by lot are those of no topic, which is no refusal; consumers' fetches are judged by the handler.
UNKNOWN = {"Fetch", "DeleteTopics"}
REFUSALS = set(CODES.values()) | {ErrorCode.OPERATION_NOT_ATTEMPTED}


def test_no_api_is_missing() -> None:
    assert {served.name for served in SERVED} <= set(ACCESS)
    for name, rules in ACCESS.items():
        assert rules or name in OPEN, name
        assert (name in SHOWN) == (
            bool(rules) and all(isinstance(rule, FilterResponse) for rule in rules)
        )


def test_what_is_between_brokers_wants_cluster_action() -> None:
    for served in SERVED:
        # An operator asks for MaintainTable; it is internal as no client of Kafka's knows it.
        if served.internal and served.name != "MaintainTable":
            (rule,) = ACCESS[served.name]
            assert isinstance(rule, AuthorizeRequest)
            assert rule == AuthorizeRequest(AclOperation.CLUSTER_ACTION, rule.resource)


def nobody() -> KafkaBroker:
    """A broker that allows nothing and has no topics."""
    denies = Authorizer([], allows_unlisted=False)
    return broker_of(security=OpenSecurity(denies), metadata=MetadataImage())


def errors_in(value: Any) -> set[int]:
    """All error codes of an answer."""
    found: set[int] = set()
    if isinstance(value, list):
        for item in value:
            found |= errors_in(item)
    elif hasattr(value, "__slots__"):
        for name in value.__slots__:
            inner = getattr(value, name)
            found |= {inner} if name == "error_code" else errors_in(inner)
    return found


@pytest.mark.parametrize("served", [s for s in SERVED if s.name not in OPEN], ids=lambda s: s.name)
def test_who_may_do_nothing_is_told_so_by_every_api_in_every_version(served: Served) -> None:
    chance = Random(served.api_key)
    for version in range(served.lowest, served.highest + 1):
        refused = 0
        for _ in range(20):
            seen: list[Any] = []

            def handler(request: Any, context: RequestContext, seen: list[Any] = seen) -> Any:
                seen.append(request)
                return refusal_of(request, version, ErrorCode.NONE)  # noqa: B023

            request = random_message(served.request, version, chance, sizes=[1, 5])
            context = RequestContext(
                RequestHeader(served.api_key, version, 1, "c"), "h", "L", nobody(), NO_CLIENT
            )
            try:
                answer = guarded(replace(served, handler=handler), request, context)
            except KafkaError as error:
                assert error.code in REFUSALS
                answer = refusal_of(request, version, error.code)
                if answer is None:
                    assert getattr(request, "acks", 1) == 0, f"{served.name} {version} has no words"
            left = seen[0] if seen else None
            for rule in ACCESS[served.name]:
                if left is not None and isinstance(rule, FilterRequest) and rule.when(version):
                    # What is left names nothing that anybody knows, or no resource at all.
                    items = getattr(left, rule.field) or []
                    assert all(rule.resource(i, nobody().metadata, left) is None for i in items)
            if answer is not None and not isinstance(answer, Awaitable):
                encode_response(answer, version, 1)
                refused += bool(errors_in(answer) & REFUSALS) or not seen
        assert refused or served.name in SHOWN | UNKNOWN, version


def test_a_principal_travels_in_an_envelope() -> None:
    for principal in (ALICE, ANONYMOUS, Principal("Group", "ä:b")):
        assert decode_principal(encode_principal(principal)) == principal
        assert principal_of(str(principal)) == principal
    assert encode_principal(ALICE) == b"\0\0" + b"\x05User" + b"\x06alice" + b"\0" + b"\0"
    for nonsense in (b"", b"\0", b"\0\1\1\1\0\0", b"\0\0\x05Us"):
        with pytest.raises(MalformedFrame):
            decode_principal(nonsense)
    with pytest.raises(ValueError, match="not a principal"):
        principal_of("alice")


# -- a broker ---------------------------------------------------------------------------------------


def metadata_of(*names: str, create: bool = False) -> MetadataRequest:
    return build(
        MetadataRequest,
        topics=[{"name": name} for name in names],
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=True,
    )


@in_loop
async def test_topics_are_described_read_and_written_by_whom_acls_let(tmp_path: Path) -> None:
    async with in_process(tmp_path, **SETTINGS) as broker:
        open_id, closed_id = await broker.create("open"), await broker.create("closed")
        await allow(broker, TOPIC, "open", AclOperation.READ, AclOperation.WRITE)

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        everything = await asks(MetadataRequest(topics=None), 12)
        assert [topic.name for topic in everything.topics] == ["open"]
        named = await asks(metadata_of("open", "closed", "absent"), 9)
        assert [topic.error_code for topic in named.topics] == [0, DENIED, DENIED]
        bits = 1 << AclOperation.READ | 1 << AclOperation.WRITE | 1 << AclOperation.DESCRIBE
        assert named.topics[0].topic_authorized_operations == bits
        by_id = build(MetadataRequest, topics=[{"name": None, "topic_id": closed_id}])
        assert (await asks(by_id, 12)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

        written = await asks(produce_request("open", batch_of([b"a"])), 9)
        assert written.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        both = produce_request("closed", batch_of([b"a"]))
        both.topic_data += produce_request("open", batch_of([b"b"])).topic_data
        written = await asks(both, 9)
        assert {
            topic.name: topic.partition_responses[0].error_code for topic in written.responses
        } == {"open": 0, "closed": DENIED}
        refused = produce_request("closed", batch_of([b"a"]), acks=0)
        with pytest.raises(Unanswerable):
            await asks(refused, 9)
        assert broker.node.replica_manager.get("closed", 0).log.log_end_offset == 0

        assert (await asks(fetch_request("open", 0), 12)).responses[0].partitions[0].error_code == 0
        closed = (await asks(fetch_request("closed", 0), 12)).responses[0].partitions[0]
        assert (closed.error_code, len(closed.records or b"")) == (DENIED, 0)
        offsets = build(ListOffsetsRequest, 
            replica_id=-1,
            topics=[
                {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
                for name in ("closed", "open")
            ],
        )  # fmt: skip
        told = {t.name: t.partitions[0].error_code for t in (await asks(offsets, 7)).topics}
        assert told == {"open": 0, "closed": DENIED}
        gone = build(
            DeleteTopicsRequest,
            topics=[
                {"name": "open", "topic_id": bytes(16)},
                {"name": None, "topic_id": closed_id},
            ],
            topic_names=[],
            timeout_ms=1000,
        )
        answer = await asks(gone, 6)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("open", DENIED),
            (None, DENIED),
        ]
        assert set(broker.node.metadata.topics) == {"open", "closed"}
        assert open_id != closed_id
        # Whoever may do all to the cluster may delete any topic, as in Kafka (ControllerApis).
        await allow(broker, CLUSTER, "kafka-cluster", AclOperation.ALL)
        assert [each.error_code for each in (await asks(gone, 6)).responses] == [0, 0]
        await broker.create("named")
        by_name = DeleteTopicsRequest(topic_names=["named"], timeout_ms=1000)
        assert [each.error_code for each in (await asks(by_name, 5)).responses] == [0]


@in_loop
async def test_acls_that_are_made_at_one_broker_hold_at_the_others(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2, **SETTINGS) as cluster:
        first, second = cluster.nodes[1], cluster.nodes[2]
        await first.create("a")
        await cluster.until("the topic", lambda: "a" in second.node.metadata.topics, 120)

        async def until_second_says(code: int) -> None:
            async with asyncio.timeout(120):
                while True:
                    answer = await second.ask(metadata_of("a"), 9, principal=ALICE)
                    if answer.topics[0].error_code == code:
                        return
                    await asyncio.sleep(0.01)

        await until_second_says(DENIED)
        await allow(first, TOPIC, "a", AclOperation.READ)
        await until_second_says(ErrorCode.NONE)
        await allow(first, TOPIC, "a", AclOperation.ALL, permission=2)
        await until_second_says(DENIED)


@in_loop
async def test_a_session_that_is_older_than_an_acl_obeys_it(tmp_path: Path) -> None:
    async with in_process(tmp_path, **SETTINGS) as broker:
        await broker.create("a")
        await broker.produce("a", batch_of([b"x"]))
        await allow(broker, TOPIC, "a", AclOperation.READ)
        wanted = build(FetchTopic, topic="a", partition=0, fetch_offset=0, partition_max_bytes=1000)
        first = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=0, topics=[wanted]
        )
        opened = await broker.ask(first, 12, principal=ALICE)
        assert opened.session_id
        assert opened.responses[0].partitions[0].error_code == ErrorCode.NONE
        await allow(broker, TOPIC, "a", AclOperation.READ, permission=2)
        again = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_id=opened.session_id,
                             session_epoch=1, topics=[])  # fmt: skip
        denied = await broker.ask(again, 12, principal=ALICE)
        assert denied.responses[0].partitions[0].error_code == DENIED
        follower = FetchRequest(
            replica_id=1, max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[wanted]
        )
        answer = await broker.ask(follower, 12, principal=ALICE)
        assert answer.error_code == DENIED, "only brokers follow"


@in_loop
async def test_groups_and_their_offsets(tmp_path: Path) -> None:
    async with in_process(tmp_path, **SETTINGS, offsets_topic_num_partitions=1) as broker:
        await broker.create("a")
        await broker.create("b")

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, member_id="", protocol_type="c", protocols=[]
        )
        assert (await asks(join, 5)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])
        await allow(broker, GROUP, "h", AclOperation.READ)
        found = {each.key: each.error_code for each in (await asks(find, 4)).coordinators}
        assert found["g"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert found["h"] == ErrorCode.NONE

        await allow(broker, TOPIC, "a", AclOperation.READ)
        commit = build(OffsetCommitRequest, member_id="", generation_id_or_member_epoch=-1, group_id="h",
            topics=[
                {"name": name, "partitions": [
                    {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]}
                for name in ("a", "b")
            ],
        )  # fmt: skip
        committed = {t.name: t.partitions[0].error_code for t in (await asks(commit, 8)).topics}
        assert committed == {"a": 0, "b": DENIED}
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("a", "b")]
        groups = [OffsetFetchRequestGroup(group_id=name, topics=wanted) for name in ("g", "h")]
        fetched = {
            each.group_id: each
            for each in (await asks(OffsetFetchRequest(groups=groups), 8)).groups
        }
        assert fetched["g"].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert {t.name: (t.partitions[0].error_code, t.partitions[0].committed_offset)
                for t in fetched["h"].topics} == {"a": (0, 1), "b": (DENIED, -1)}  # fmt: skip
        await broker.ask(
            OffsetCommitRequest(
                member_id="",
                generation_id_or_member_epoch=-1,
                group_id="secret",
                topics=commit.topics,
            ),
            8,
        )
        listed = await asks(ListGroupsRequest(), 4)
        assert [each.group_id for each in listed.groups] == ["h"]
        assert len((await broker.ask(ListGroupsRequest(), 4)).groups) == 2
        described = await asks(
            DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True), 5
        )
        by_name = {each.group_id: each for each in described.groups}
        assert by_name["g"].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (
            by_name["h"].authorized_operations
            == 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
        )


@in_loop
async def test_producer_ids_and_transactions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with in_process(tmp_path, **SETTINGS) as broker:
        await broker.create("a")
        await broker.create("b")

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        plain = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        assert (await asks(plain, 4)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await allow(broker, TOPIC, "b", AclOperation.WRITE)
        assert (await asks(plain, 4)).error_code == ErrorCode.NONE, (
            "who may write anywhere may be idempotent"
        )
        assert sum("IDEMPOTENT_WRITE" in each.getMessage() for each in caplog.records) == 1
        named = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await asks(named, 4)).error_code == refused
        await allow(broker, TXN, "t", AclOperation.WRITE)
        two_phase = InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=0, enable2_pc=True
        )
        assert (await asks(two_phase, 6)).error_code == refused
        await allow(broker, TXN, "t", AclOperation.TWO_PHASE_COMMIT)
        assert (await asks(two_phase, 6)).error_code == ErrorCode.NOT_COORDINATOR
        adding = build(AddPartitionsToTxnRequest, 
            v3_and_below_transactional_id="t", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": name, "partitions": [0]} for name in ("a", "b")],
        )  # fmt: skip
        results = (await asks(adding, 3)).results_by_topic_v3_and_below
        assert {each.name: each.results_by_partition[0].partition_error_code for each in results} == {
            "a": DENIED, "b": ErrorCode.OPERATION_NOT_ATTEMPTED,
        }  # fmt: skip


@in_loop
async def test_topics_to_create_and_the_cluster(tmp_path: Path) -> None:
    async with in_process(tmp_path, **SETTINGS) as broker:
        await broker.create("a")
        await allow(broker, TOPIC, "a", AclOperation.READ)

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        new = build(CreatableTopic, name="new", num_partitions=1, replication_factor=1)
        create = CreateTopicsRequest(topics=[new])
        assert (await asks(create, 7)).topics[0].error_code == DENIED
        auto = await asks(metadata_of("new", create=True), 9)
        assert auto.topics[0].error_code == DENIED
        await allow(broker, TOPIC, "new", AclOperation.DESCRIBE)
        assert (await asks(metadata_of("new", create=True), 9)).topics[0].error_code == DENIED
        await allow(broker, CLUSTER, "kafka-cluster", AclOperation.CREATE)
        cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
        # Who may not describe the cluster is not told what it may do there either (AuthHelper).
        assert (await asks(cluster, 0)).cluster_authorized_operations == 0
        await allow(broker, CLUSTER, "kafka-cluster", AclOperation.DESCRIBE)
        bits = 1 << AclOperation.CREATE | 1 << AclOperation.DESCRIBE
        assert (await asks(cluster, 0)).cluster_authorized_operations == bits
        assert (await asks(metadata_of("new", create=True), 9)).topics[
            0
        ].error_code == ErrorCode.NONE
        configs = build(
            DescribeConfigsRequest,
            resources=[
                {"resource_type": 2, "resource_name": "a", "configuration_keys": None},
                {"resource_type": 4, "resource_name": "1", "configuration_keys": None},
            ],
        )
        codes = [each.error_code for each in (await asks(configs, 4)).results]
        assert codes == [DENIED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        acls = CreateAclsRequest(creations=[])
        assert (await asks(acls, 3)).results == []
        with pytest.raises(KafkaError):
            raise KafkaError(ErrorCode((await asks(EnvelopeRequest(
                request_data=b"", request_principal=None, client_host_address=b""), 0)).error_code))  # fmt: skip


@in_loop
async def test_members_of_the_consumer_protocol_see_what_they_may_describe(tmp_path: Path) -> None:
    at_once = {"group_consumer_assignment_interval_ms": 0}
    async with in_process(
        tmp_path, **SETTINGS, **at_once, offsets_topic_num_partitions=1
    ) as broker:
        ids = {await broker.create("t-open"): "t-open", await broker.create("t-closed"): "t-closed"}
        await allow(broker, GROUP, "g", AclOperation.READ)
        await allow(broker, TOPIC, "t-open", AclOperation.DESCRIBE)
        member = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=1000, topic_partitions=[],
            subscribed_topic_names=["t-open", "t-closed"],
        )  # fmt: skip

        async def beat() -> list[str]:
            answer = await broker.ask(member, 1, principal=ALICE)
            assert answer.error_code == ErrorCode.NONE
            member.member_epoch, member.subscribed_topic_regex = answer.member_epoch, None
            return sorted(ids[each.topic_id] for each in answer.assignment.topic_partitions)

        await broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        answer = await broker.ask(member, 1, principal=ALICE)
        assert (answer.error_code, answer.assignment) == (DENIED, None)
        member.subscribed_topic_names, member.subscribed_topic_regex = None, "t-.*"
        assert await beat() == ["t-open"]
        await allow(broker, TOPIC, "t-closed", AclOperation.DESCRIBE)
        assert await beat() == ["t-closed", "t-open"], "an ACL is a reason to look again"
        describe = ConsumerGroupDescribeRequest(group_ids=["g"])
        described = (await broker.ask(describe, 1, principal=ALICE)).groups[0]
        assert (described.error_code, len(described.members)) == (0, 1)
        await allow(broker, TOPIC, "t-closed", AclOperation.DESCRIBE, permission=2)
        described = (await broker.ask(describe, 1, principal=ALICE)).groups[0]
        assert (described.error_code, described.members) == (DENIED, [])


@in_loop
async def test_what_is_in_an_envelope_is_asked_by_who_is_named_there(tmp_path: Path) -> None:
    from kafka_ds.protocol.frame import decode_response, encode_request
    from kafka_ds.protocol.messages import CreateTopicsResponse

    async with in_process(tmp_path, **SETTINGS) as broker:
        new = build(CreatableTopic, name="a", num_partitions=1, replication_factor=1)
        inside = encode_request(CreateTopicsRequest(topics=[new]), 7, 0, "c")[4:]
        for principal, expected in ((encode_principal(ALICE), DENIED), (None, ErrorCode.NONE)):
            envelope = EnvelopeRequest(
                request_data=inside, request_principal=principal, client_host_address=b"\x7f\0\0\1"
            )
            answer = await broker.ask(envelope, 0)
            assert answer.error_code == ErrorCode.NONE
            frame = memoryview(bytes(answer.response_data))
            assert (
                decode_response(CreateTopicsResponse, frame, 7)[1].topics[0].error_code == expected
            )
        stranger = await broker.ask(envelope, 0, principal=ALICE)
        assert stranger.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        broken = EnvelopeRequest(
            request_data=inside, request_principal=b"?", client_host_address=b""
        )
        code = (await broker.ask(broken, 0)).error_code
        assert code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        assert ProduceRequest  # what is not forwarded is refused elsewhere
