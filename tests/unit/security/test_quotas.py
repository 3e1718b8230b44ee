"""Quotas: which one holds, how long who has used it up waits, what such a client gets, and when it is heard again."""

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.broker_metrics import broker_samples
from broker.metrics.names import Summary
from broker.principal import Principal
from broker.rates import WindowedRate
from broker.registry import REGISTRY
from broker.security.guard import guarded
from broker.security.quotas.quotas import SENSORS_MAX, ClientQuotas, Quotas, Shared
from broker.security.quotas.throttle import Throttled
from broker.server.metrics import THROTTLE_TIME
from kafka_ds.protocol.codec import encode
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import encode_request
from kafka_ds.protocol.messages import (
    AlterClientQuotasRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
    MaintainTableRequest,
    MetadataRequest,
    OffsetDeleteRequest,
    UpdateFeaturesRequest,
)
from kafka_ds.protocol.messages.brokers import OPTIMIZE
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.quorum import FeatureUpdateKey
from kafka_ds.protocol.messages.security import AlterQuotaEntryData
from kafka_ds.protocol.messages.topics import DeleteTopicState
from tests.fakes.clock import ManualClock
from tests.fakes.kafka_broker import OpenSecurity, broker_of, no_quotas
from tests.in_process import (
    LISTENER,
    InProcess,
    batch_of,
    fetch_request,
    in_process,
    in_process_cluster,
    produce_request,
    values_of,
)
from tests.integration.raw_client import RawClient
from tests.loops import in_loop
from tests.requests import build
from tests.unit.security.quota_entities import entity
from tests.unit.share.share_members import Member, initialize

BYTES, SHARE, MUTATIONS = "producer_byte_rate", "request_percentage", "controller_mutation_rate"
Names = dict[str, str | None]


def limited(**values: float) -> ClientQuotas:
    quotas = no_quotas()
    quotas.quotas.replace({entity(user="u"): values})
    return quotas


# In the order in which they are looked for, with who shares what is found.
NEAREST: list[tuple[Names, Shared]] = [
    ({"user": "u", "client_id": "c"}, Shared("u", "c")),
    ({"user": "u", "client_id": None}, Shared("u", "c")),
    ({"user": "u"}, Shared("u", None)),
    ({"user": None, "client_id": "c"}, Shared("u", "c")),
    ({"user": None, "client_id": None}, Shared("u", "c")),
    ({"user": None}, Shared("u", None)),
    ({"client_id": "c"}, Shared(None, "c")),
    ({"client_id": None}, Shared(None, "c")),
]


def test_the_nearest_quota_holds() -> None:
    quotas = Quotas()
    assert quotas.of(BYTES, "u", "c") is None
    others = {entity(user="other"): {BYTES: 0.5}, entity(client_id="other"): {BYTES: 0.5},
              entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0}}  # fmt: skip
    for first in range(len(NEAREST)):
        there = {
            entity(**names): {BYTES: float(place + 1)}
            for place, (names, _) in enumerate(NEAREST)
            if place >= first
        }
        quotas.replace({**there, **others})
        found = quotas.of(BYTES, "u", "c")
        assert found is not None
        assert (found.value, found.shared) == (first + 1, NEAREST[first][1])
        assert quotas.of(SHARE, "u", "c") is None
    quotas.replace(others)
    assert quotas.of(BYTES, "u", "c") is None
    quotas.replace({entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0}})
    assert not quotas.is_limiting


def test_a_burst_at_the_start_is_measured_over_a_window_as_if_it_were_full() -> None:
    quotas = limited(producer_byte_rate=100.0)
    assert quotas.produced("u", "c", 1000, 0) == 0, "1000 bytes over 10 seconds are 100 a second"
    assert quotas.produced("u", "c", 500, 0) == 5000, (
        "50 a second too many: half of ten seconds more"
    )
    assert quotas.produced("x", "c", 10**9, 0) == 0, "whose quota is another's"
    assert quotas.produced("u", "another client id", 0, 0) == 5000, "a user's quota is shared"


def test_who_has_waited_may_go_on() -> None:
    quotas = limited(producer_byte_rate=100.0)
    now_ms = 0
    for _ in range(500):
        now_ms += quotas.produced("u", "c", 60, now_ms) + 1
    assert 500 * 60 / (now_ms / 1000) == pytest.approx(100.0, rel=0.15)
    assert quotas.produced("u", "c", 0, now_ms + 12_000) == 0, "all of it is long ago"


def test_a_consumer_is_charged_for_what_it_gets() -> None:
    quotas = limited(consumer_byte_rate=100.0)
    assert quotas.fetched("u", "c", 900, 0) == 0
    assert quotas.fetched("u", "c", 200, 0) == 1000
    quotas.unfetched("u", "c", 200, 0)
    assert quotas.fetched("u", "c", 100, 0) == 0, "what it did not get does not count"


def test_a_share_of_time_keeps_nobody_for_longer_than_a_sample() -> None:
    quotas = limited(request_percentage=1.0)
    assert quotas.worked("u", "c", 0.1, 0) == 0
    assert quotas.worked("u", "c", 60.0, 0) == 1000


def test_changes_of_topics_are_a_bucket() -> None:
    quotas = limited(controller_mutation_rate=2.0)
    assert quotas.mutation_wait_ms("u", "c", 0) == 0
    assert quotas.mutated("u", "c", 30, 0) == 4000, "22 are there, more may be taken"
    assert quotas.mutation_wait_ms("u", "c", 0) == 4000
    assert quotas.mutated("u", "c", 1, 0) == 4500, "older clients wait"
    assert quotas.mutation_wait_ms("u", "c", 4500) == 0
    assert quotas.mutated("x", "c", 10**6, 0) == 0
    taken = quotas.reserve_mutations("u", "c", 2**31 - 1, 4500)
    assert quotas.mutation_wait_ms("u", "c", 4500) == 11_500, "nobody granted them yet"
    quotas.give_back_mutations("u", "c", taken, 4500)
    assert quotas.mutation_wait_ms("u", "c", 4500) == 0, "to have asked costs nothing"


def test_no_wait_is_longer_than_an_answer_can_say() -> None:
    quotas = limited(producer_byte_rate=1e-300, controller_mutation_rate=1e-9)
    assert quotas.produced("u", "c", 10**9, 0) == 2**31 - 1
    assert quotas.mutated("u", "c", 1000, 0) == 2**31 - 1
    assert quotas.mutation_wait_ms("u", "c", 0) == 2**31 - 1


def test_long_names_are_not_remembered_whole() -> None:
    quotas = limited()
    quotas.quotas.replace({entity(client_id=None): {BYTES: 1.0}})
    assert quotas.produced("u", "c" * 30_000, 10, 0) == 0
    assert quotas.produced("u", "c" * 30_001, 10, 0) > 0, "the same client, as far as it matters"
    ((_, shared, _),) = quotas.sensors()
    assert shared == Shared(None, "c" * 249)
    # Nor does a quota that is for such a name alone hold for nobody.
    quotas.quotas.replace({entity(client_id="c" * 300): {BYTES: 5.0}})
    found = quotas.quotas.of(BYTES, "u", "c" * 300)
    assert found is not None and found.value == 5.0
    assert quotas.quotas.of(BYTES, "u", "c" * 248) is None


def test_who_is_silent_is_forgotten() -> None:
    quotas = limited(producer_byte_rate=100.0)
    quotas.quotas.replace({entity(client_id=None): {BYTES: 1.0}})
    for number in range(SENSORS_MAX + 5):
        quotas.produced("u", f"c{number}", 1, 0)
    assert sum(1 for _ in quotas.sensors()) == SENSORS_MAX


class RateModel:
    """All that was recorded, never forgotten, cut into samples as they began."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self.began: list[tuple[int, float]] = []

    def live(self, now_ms: int) -> Iterator[tuple[int, float]]:
        return ((at, v) for at, v in self.began if now_ms - at < self.samples * self.window_ms)

    def record(self, value: float, now_ms: int) -> None:
        if not self.began or now_ms - self.began[-1][0] >= self.window_ms:
            self.began.append((now_ms, value))
        else:
            self.began[-1] = (self.began[-1][0], self.began[-1][1] + value)

    def rate(self, now_ms: int) -> float:
        live = list(self.live(now_ms))
        oldest = live[0][0] if live else now_ms
        full = (now_ms - oldest) // self.window_ms
        span = now_ms - oldest + max(self.samples - 1 - full, 0) * self.window_ms
        return sum(v for _, v in live) * 1000 / max(span, self.window_ms)


STEPS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1000)), min_size=1, max_size=60)


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(1, 12), st.sampled_from([100, 1000]))
def test_the_rate_is_that_of_the_last_samples(
    steps: list[tuple[int, int]], samples: int, window_ms: int
) -> None:
    rate, model, now_ms = WindowedRate(samples, window_ms), RateModel(samples, window_ms), 0
    for passed_ms, value in steps:
        now_ms += passed_ms
        rate.record(value, now_ms)
        model.record(value, now_ms)
        assert rate.rate(now_ms) == pytest.approx(model.rate(now_ms))


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(1, 500))
def test_who_waits_as_long_as_told_gets_little_more_than_the_quota(
    steps: list[tuple[int, int]], quota: int
) -> None:
    """As in Kafka: who waits for longer than the window begins anew, with a window's worth: twice the quota at most."""
    quotas = limited(producer_byte_rate=float(quota))
    now_ms, total, largest = 0, 0, 0
    for passed_ms, value in steps:
        total += value
        largest = max(largest, value)
        now_ms += passed_ms + quotas.produced("u", "c", value, now_ms + passed_ms)
        assert total <= quota * (2 * now_ms / 1000 + 11) + largest + 1


# -- a broker ---------------------------------------------------------------------------------------

ALICE = Principal("User", "alice")


async def limit(broker: InProcess, who: dict[str, str | None], **values: float) -> None:
    entry = build(
        AlterQuotaEntryData,
        entity=[
            {"entity_type": kind.replace("_", "-"), "entity_name": name}
            for kind, name in who.items()
        ],
        ops=[{"key": key, "value": value, "remove": False} for key, value in values.items()],
    )
    answer = await broker.ask(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
    assert answer.entries[0].error_code == ErrorCode.NONE


def new(*names: str, partitions: int = 2) -> CreateTopicsRequest:
    return build(CreateTopicsRequest, 
        topics=[
            {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
            for name in names
        ]
    )  # fmt: skip


@in_loop
async def test_producers_consumers_and_those_who_make_topics_are_throttled(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
        batch = batch_of([b"x" * 2000])

        def asks(request: Any, version: int) -> Any:
            return broker.ask(request, version, principal=ALICE)

        assert (await asks(produce_request("a", batch), 9)).throttle_time_ms == 0
        await limit(broker, {"user": "alice"}, producer_byte_rate=100.0, consumer_byte_rate=100.0)
        written = await asks(produce_request("a", batch), 9)
        assert written.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert written.throttle_time_ms > 0
        assert (await broker.ask(produce_request("a", batch), 9)).throttle_time_ms == 0
        # What nobody awaits is no answer, but its connection is not heard either.
        dispatcher = broker.dispatcher
        frame = memoryview(encode_request(produce_request("a", batch, acks=0), 9, 1, "c"))[4:]
        unanswered = dispatcher.handle(memoryview(bytearray(frame)), "h", LISTENER, 0.0, ALICE)
        assert isinstance(unanswered, Throttled)
        assert list(unanswered) == []
        assert unanswered.throttle_ms > 0
        (throttled,) = (
            value
            for metric, labels, value in broker.owner.metrics.samples()
            if metric is THROTTLE_TIME and labels == ("Produce",)
        )
        assert isinstance(throttled, Summary)
        assert round(throttled.total) == written.throttle_time_ms + unanswered.throttle_ms

        first = await asks(fetch_request("a", 0, partition_max_bytes=1), 12)
        assert first.throttle_time_ms > 0
        assert first.responses == [], "it gets nothing, and asks again"
        follower = await broker.ask(fetch_request("a", 0, replica_id=7), 12, principal=ALICE)
        assert follower.throttle_time_ms == 0, "brokers are exempt"

        await limit(broker, {"client_id": "operator"}, request_percentage=0.000001)
        upkeep = MaintainTableRequest(topic="a", partition=0, operation=OPTIMIZE)
        answers = [await broker.ask(upkeep, 0, client_id="operator") for _ in range(2)]
        assert answers[-1].throttle_time_ms > 0, "it is no broker that asks"

        shown = {
            (metric.name, labels): value
            for metric, labels, value in broker_samples(broker.node)
            if labels == ("alice", "")
        }
        assert ("kafka_server_produce_byte_rate", ("alice", "")) in shown
        assert shown["kafka_server_fetch_throttle_time", ("alice", "")] == first.throttle_time_ms

        await limit(broker, {"client_id": "maker"}, controller_mutation_rate=0.01)
        made = await broker.ask(new("b", "c", "d", partitions=10), 7, client_id="maker")
        codes = {topic.name: topic.error_code for topic in made.topics}
        assert codes == {"b": 0, **dict.fromkeys("cd", ErrorCode.THROTTLING_QUOTA_EXCEEDED)}
        assert made.throttle_time_ms > 0
        old = await broker.ask(new("e"), 4, client_id="maker")
        assert (old.topics[0].error_code, old.throttle_time_ms > 0) == (0, True)
        gone = DeleteTopicsRequest(topics=[], topic_names=["b"], timeout_ms=1000)
        refused = await broker.ask(gone, 5, client_id="maker")
        assert refused.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "b" in broker.node.metadata.topics


@in_loop
async def test_a_member_of_a_share_group_gets_what_it_acquired_and_waits(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        topic_id = await broker.create("a")
        await broker.produce("a", batch_of([b"x" * 2000]))
        await initialize(broker, topic_id)
        await limit(broker, {"user": None}, consumer_byte_rate=100.0)
        member = Member(broker, topic_id)
        answer = await member.fetch()
        assert answer.throttle_time_ms > 0
        assert len(answer.responses[0].partitions[0].acquired_records) == 1


@in_loop
async def test_what_is_written_and_read_counts_as_whole_messages(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a", partitions=3)
        await limit(broker, {"user": "alice"}, producer_byte_rate=1e6, consumer_byte_rate=1e6)
        written = produce_request("a", batch_of([b"x" * 2000]))
        await broker.ask(written, 9, client_id="c", principal=ALICE)
        read = await broker.ask(fetch_request("a", 0), 12, client_id="c", principal=ALICE)
        now_ms = broker.node.clock.monotonic_ms()
        counted = {
            name: sensor.rate.rate(now_ms) * sensor.rate.span_ms(now_ms) / 1000
            for name, _, sensor in broker.node.security.quotas.sensors()
        }
        assert counted == {
            "producer_byte_rate": pytest.approx(len(encode_request(written, 9, 1, "c")) - 4),
            "consumer_byte_rate": pytest.approx(4 + len(encode(read, 12))),
        }


@in_loop
async def test_a_consumer_that_waits_as_told_ends_with_all_records(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
        for _ in range(20):
            await broker.produce("a", batch_of([b"x" * 200]))
        await limit(broker, {"user": "alice"}, consumer_byte_rate=100.0)
        clock = ManualClock(broker.node.clock.monotonic_ms())
        broker.exchange(clock=clock)
        offset, empty = 0, 0
        while offset < 20:
            answer = await broker.ask(fetch_request("a", offset), 12, principal=ALICE)
            clock.ms += answer.throttle_time_ms
            empty += not answer.responses
            for topic in answer.responses:
                assert answer.throttle_time_ms == 0
                offset += len(values_of(topic.partitions[0].records))
            assert empty < 40, f"it waits for ever for offset {offset}"
        assert empty, "it had to wait"


@in_loop
async def test_a_throttled_fetch_leaves_no_session_and_takes_nothing_as_told(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
        sessions = broker.node.fetch_manager.sessions

        def asks(session_id: int, epoch: int, offset: int = 0) -> Any:
            request = fetch_request("a", offset, session_id=session_id, session_epoch=epoch)
            return broker.ask(request, 12, principal=ALICE)

        begun = await asks(0, 0)
        assert begun.session_id and len(sessions) == 1
        await broker.produce("a", batch_of([b"x" * 2000]))
        await limit(broker, {"user": "alice"}, consumer_byte_rate=100.0)
        refused = await asks(0, 0)
        assert refused.throttle_time_ms > 0 and refused.responses == []
        assert (refused.session_id, len(sessions)) == (0, 1)
        refused = await asks(begun.session_id, 1)
        assert refused.throttle_time_ms > 0 and refused.responses == []
        assert refused.session_id == begun.session_id
        # The high watermark has moved, and nobody was told.
        request = fetch_request("a", 1, session_id=begun.session_id, session_epoch=2)
        told = await broker.ask(request, 12)
        assert told.responses[0].partitions[0].high_watermark == 1


@pytest.mark.interpreted
@in_loop
async def test_what_followers_await_is_handed_on_as_it_is() -> None:
    parked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    served = next(each for each in REGISTRY if each.name == "Fetch")
    served = dataclasses.replace(served, handler=lambda request, context: parked)
    security = OpenSecurity(quotas=limited(request_percentage=1.0))
    context: Any = SimpleNamespace(broker=broker_of(security=security))
    asked = fetch_request("a", 0, replica_id=2)
    assert guarded(served, asked, context, lambda *_: None) is parked, "it may be hurried"
    parked.cancel()


@in_loop
async def test_what_was_not_granted_is_not_counted(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
        await limit(broker, {"user": "alice"}, controller_mutation_rate=1.0)
        many = await broker.ask(new("a", partitions=2**31 - 1), 7, principal=ALICE)
        assert many.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        # Of two at the same moment the second finds what the first has taken.
        made = await asyncio.gather(
            *(broker.ask(new(name, partitions=20), 7, principal=ALICE) for name in ("b", "d"))
        )
        codes = [answer.topics[0].error_code for answer in made]
        assert codes == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        refused = await broker.ask(new("c"), 7, principal=ALICE)
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        # What is deleted by its id counts as well. A topic without a name is nobody's.
        bob = Principal("User", "bob")
        await limit(broker, {"user": "bob"}, controller_mutation_rate=1.0)
        by_id = DeleteTopicState(topic_id=broker.node.metadata.topics["b"].topic_id)
        gone = DeleteTopicsRequest(topics=[by_id], topic_names=[], timeout_ms=1000)
        deleted = await broker.ask(gone, 6, principal=bob)
        assert (deleted.responses[0].error_code, deleted.responses[0].name) == (0, "b")
        refused = await broker.ask(new("c"), 7, principal=bob)
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        made = await broker.ask(new(""), 4, principal=ALICE)
        assert made.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        gone = DeleteTopicsRequest(topics=[], topic_names=[""], timeout_ms=1000)
        deleted = await broker.ask(gone, 4, principal=ALICE)
        assert deleted.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@in_loop
async def test_what_is_refused_as_a_whole_takes_time_too(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await limit(broker, {"user": "alice"}, request_percentage=1e-9)
        at_once = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=0)
        wrong = UpdateFeaturesRequest(
            feature_updates=[FeatureUpdateKey(feature="f", max_version_level=1)] * 2
        )
        for request, version, code in (
            (at_once, 0, None),
            (OffsetDeleteRequest(group_id="g", topics=[]), 0, ErrorCode.NOT_COORDINATOR),
            (wrong, 2, ErrorCode.INVALID_REQUEST),  # by a coroutine
        ):
            answer = await broker.ask(request, version, principal=ALICE)
            assert getattr(answer, "error_code", None) == code
            assert answer.throttle_time_ms == 1000


@in_loop
async def test_topics_that_metadata_creates_count_as_well(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others

        async def ask_for(broker: InProcess, *names: str) -> list[int]:
            topics = [MetadataRequestTopic(name=name) for name in names]
            answer = await broker.ask(MetadataRequest(topics=topics), 12, principal=ALICE)
            return [topic.error_code for topic in answer.topics]

        await limit(cluster.controller, {"user": "alice"}, controller_mutation_rate=0.01)
        await cluster.until("the quota", lambda: other.node.security.quotas.is_limiting)
        assert await ask_for(other, "a") == [ErrorCode.NONE]
        for broker in (other, cluster.controller):
            # As from Kafka, which creates them in the client's name: it asks again later.
            assert await ask_for(broker, "b", "a") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert "b" not in cluster.controller.node.metadata.topics


@in_loop
async def test_a_throttled_connection_is_not_heard_until_its_time_is_over(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
        batch = batch_of([b"x" * 1000])
        # 1,100 bytes over ten seconds are a tenth more than this allows: a second to wait.
        await limit(broker, {"user": "ANONYMOUS"}, producer_byte_rate=100.0)
        _, port = broker.owner.server.addresses["PLAINTEXT"]

        def talk() -> tuple[int, float]:
            with RawClient(f"127.0.0.1:{port}") as client:
                begun = time.monotonic()
                throttle_ms = client.ask(produce_request("a", batch), 9).throttle_time_ms
                client.ask(MetadataRequest(topics=[]), 9)
                return throttle_ms, time.monotonic() - begun

        throttle_ms, waited = await asyncio.to_thread(talk)
        assert throttle_ms > 0
        assert waited * 1000 >= throttle_ms - 20, "never less than it was told"
