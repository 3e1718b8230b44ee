"""The same requests to Apache Kafka and to us: conversations about groups, generated requests of every API, records.

Both brokers are started once, for all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.config.broker import BrokerConfig
from broker.coordinator.group.metadata_image import CoordinatorMetadataImage
from broker.coordinator.group.offsets import OffsetAndMetadata
from broker.coordinator.group.shard import GroupCoordinatorShard
from broker.coordinator.group.streams_protocol import task_ids
from broker.coordinator.result import Instant
from broker.metadata.image import MetadataImage
from broker.registry import REGISTRY
from kafka_ds.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeGroupsRequest,
    OffsetFetchRequest,
)
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.messages.security import ScramCredentialDeletion, ScramCredentialUpsertion
from kafka_ds.records.batch import iterate_headers
from tests.apache_kafka import ApacheKafka, dump
from tests.integration.raw_client import RawClient
from tests.peer import sasl_talks, token_talks
from tests.peer.consumer_talks import CONSUMER_TALKS
from tests.peer.consumer_walks import ConsumerWalk
from tests.peer.group_talks import SETTINGS, TALKS, Talk
from tests.peer.pair_allowances import Allowances
from tests.peer.pair_cases import Case, cases
from tests.peer.pair_sides import Pair, PairSide, differences
from tests.peer.pair_values import MESSAGE_BYTES_MAX
from tests.peer.producer_sides import ProducerSide
from tests.peer.share_record_talks import (
    dead_letters_of_a_share_group,
    records_of_a_share_group,
)
from tests.peer.share_talks import PEER_SETTINGS, SHARE_SETTINGS, SHARE_TALKS
from tests.peer.streams_talks import (
    STREAMS_SETTINGS,
    STREAMS_TALKS,
    streams_group_with_two_members,
)
from tests.peer.telemetry_talks import TelemetryTalk
from tests.peer.transaction_walks import PARTITIONS, TransactionWalk
from tests.processes import BrokerProcess, running_broker, wait_until

pytestmark = pytest.mark.jars

GROUPS = ["g", "s", "used", "connect", "basic3", *(f"o{number}" for number in range(2, 11))]


# What requests that are drawn need beside that: nothing that one broker does by itself in the meantime.
PAIR_SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.retention.ms": -1,
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
}
# Pairs of each version of an API, in the quick run and in the long one.
FEW, MANY = 2, 28
MANY_PAIRS_MIN = 5_000


@pytest.fixture(scope="module")
def theirs(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    settings = {
        **SETTINGS,
        **PAIR_SETTINGS,
        **sasl_talks.SETTINGS,
        **SHARE_SETTINGS,
        **STREAMS_SETTINGS,
        **PEER_SETTINGS,
        **token_talks.SETTINGS,
    }
    folder = tmp_path_factory.mktemp("peer") / "kafka"
    door = {sasl_talks.LISTENER: sasl_talks.PROTOCOL}
    kafka = ApacheKafka(kafka_jars, folder, settings, listeners=door)
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    name = sasl_talks.LISTENER
    settings = {
        **SETTINGS,
        **PAIR_SETTINGS,
        **sasl_talks.SETTINGS,
        **SHARE_SETTINGS,
        **STREAMS_SETTINGS,
        **token_talks.SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:0,{name}://127.0.0.1:0",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{name}:{sasl_talks.PROTOCOL}",
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with running_broker(tmp_path_factory.mktemp("peer") / "ours", settings) as broker:
        yield broker
    assert "Traceback" not in broker.log_file.read_text()


@pytest.fixture(scope="module")
def talks(theirs: ApacheKafka, ours: BrokerProcess) -> Iterator[tuple[Talk, Talk]]:
    sides = Talk(theirs.bootstrap), Talk(ours.bootstrap)
    yield sides
    for side in sides:
        side.close()


@pytest.mark.parametrize(
    "conversation",
    (
        *TALKS,
        *CONSUMER_TALKS,
        *SHARE_TALKS,
        *STREAMS_TALKS,
        records_of_a_share_group,
        dead_letters_of_a_share_group,
    ),
    ids=lambda conversation: conversation.__name__,
)
def test_what_apache_kafka_answers_is_answered_here(
    talks: tuple[Talk, Talk], conversation: Any
) -> None:
    for talk in talks:
        talk.said.clear()
        conversation(talk)
    said_by_kafka, said_here = (talk.said for talk in talks)
    assert said_here
    assert said_here == said_by_kafka


def known_to(bootstrap: str) -> dict[str, tuple[Any, ...]]:
    """State, protocol, members and offsets of each group, as a client sees them."""
    found = {}
    with RawClient(bootstrap) as client:
        for group in GROUPS:
            (shown,) = client.ask(DescribeGroupsRequest(groups=[group]), 6).groups
            asked = OffsetFetchRequestGroup(group_id=group, topics=None)
            (offsets,) = client.ask(OffsetFetchRequest(groups=[asked]), 9).groups
            found[group] = (
                shown.group_state,
                shown.protocol_type,
                sorted((m.member_id, m.member_assignment) for m in shown.members),
                {
                    (topic.name, p.partition_index): (p.committed_offset, p.metadata)
                    for topic in offsets.topics
                    for p in topic.partitions
                },
            )
    return found


def shard_of(folder: Path) -> GroupCoordinatorShard:
    """Our machine, with the groups of a partition's files."""
    shard = GroupCoordinatorShard(BrokerConfig, str, CoordinatorMetadataImage(MetadataImage()))
    for file in sorted(folder.glob("*.log")):
        data = file.read_bytes()
        for position, header in iterate_headers(data):
            shard.replay_batch(data, position, header)
    shard.loaded(Instant(0, 0))
    return shard


def known_from_files(folder: Path) -> dict[str, tuple[Any, ...]]:
    """The same out of a partition's files, by our machine."""
    shard = shard_of(folder)
    found = {}
    for name in GROUPS:
        group = shard.state.find(name)
        offsets = shard.state.offsets.of_group(name)

        def told(offset: OffsetAndMetadata) -> tuple[int, str]:
            return offset.offset, offset.metadata

        found[name] = (
            "Dead" if group is None else group.state.value,
            (group and group.protocol_type) or "",
            sorted((m.member_id, m.assignment) for m in group.members.values()) if group else [],
            {(t, p): told(o) for t, partitions in offsets.items() for p, o in partitions.items()},
        )
    return found


def test_what_apache_kafka_has_written_is_read_here(
    talks: tuple[Talk, Talk], theirs: ApacheKafka
) -> None:
    known = known_to(theirs.bootstrap)
    assert {state for state, *_ in known.values()} >= {"Stable", "Empty"}
    # A rebalance that is under way is in no record: a restarted coordinator knows the generation before it.
    # Nor is a group whose last offset was deleted.
    settled = {group: facts for group, facts in known.items() if group not in ("s", "o5")}
    read = known_from_files(theirs.data / "__consumer_offsets-0")
    assert len(settled) >= 12
    assert {group: read[group] for group in settled} == settled


def test_a_streams_group_of_apache_kafka_is_read_here(
    talks: tuple[Talk, Talk], theirs: ApacheKafka
) -> None:
    # On both sides: what comes next wants the same topics.
    told, _ = (streams_group_with_two_members(talk) for talk in talks)
    group = shard_of(theirs.data / "__consumer_offsets-0").state.streams[told.group_id]
    assert (group.state.value, group.epoch, group.target_epoch) == (
        told.group_state,
        told.group_epoch,
        told.assignment_epoch,
    )
    assert group.topology is not None
    assert [each.subtopology_id for each in group.topology.subtopologies] == ["0", "1"]
    assert {
        m.member_id: (m.process_id, m.epoch, *map(task_ids, m.assigned))
        for m in group.members.values()
    } == {
        m.member_id: (
            m.process_id,
            m.member_epoch,
            m.assignment.active_tasks,
            m.assignment.standby_tasks,
            m.assignment.warmup_tasks,
        )
        for m in told.members
    }


def test_apache_kafkas_tool_reads_what_was_written_here(
    talks: tuple[Talk, Talk], ours: BrokerProcess, kafka_jars: Path
) -> None:
    files = sorted((ours.data / "__consumer_offsets-0").glob("*.log"))
    lines = dump(kafka_jars, files, "--offsets-decoder").splitlines()
    records = [line.partition(" key: ")[2] for line in lines if " key: " in line]
    offsets: dict[str, int] = {}
    groups: dict[str, int] = {}
    for record in records:
        key, _, payload = record.partition(" payload: ")
        told = json.loads(key)
        if "group" not in told["data"]:
            continue  # of the consumer protocol: their groups are told of by no classic API
        group = told["data"]["group"]
        value = None if payload == "<DELETE>" else json.loads(payload)["data"]
        if told["type"] == "1":
            where = f"{group}/{told['data']['topic']}-{told['data']['partition']}"
            offsets.pop(where, None) if value is None else offsets.update({where: value["offset"]})
        elif value is None:
            groups.pop(group, None)
        else:
            groups[group] = len(value["members"])
    known = known_to(ours.bootstrap)
    assert {
        f"{group}/{topic}-{partition}": offset
        for group, (*_, told) in known.items()
        for (topic, partition), (offset, _) in told.items()
    } == {where: offset for where, offset in offsets.items() if where.split("/")[0] in GROUPS}
    assert groups["used"] == groups["connect"] == 1 and groups["g"] == 0


@pytest.fixture(scope="module")
def pair(talks: tuple[Talk, Talk], theirs: ApacheKafka, ours: BrokerProcess) -> Iterator[Pair]:
    sides = PairSide(theirs.bootstrap), PairSide(ours.bootstrap)
    asked = Pair(*sides)
    asked.prepare()
    yield asked
    for side in sides:
        side.close()


def few(api: str, version: int) -> range:
    """Others in each version, and the same in every run, whatever else is served."""
    first = (len(api) + version) % 8
    return range(first, first + FEW)


def many(api: str, version: int) -> range:
    return range(MANY)


def drawn(pair: Pair, numbers: Callable[[str, int], range]) -> Iterator[Case]:
    """Requests of every version of every API that both serve; `numbers`: which ones of them."""
    known = [side.api_versions() for side in (pair.theirs, pair.ours)]
    for served in REGISTRY:
        if any(served.api_key not in k for k in known):
            continue
        lowest, highest = known[0][served.api_key]
        for version in range(max(lowest, served.lowest), min(highest, served.highest) + 1):
            yield from cases(served, version, numbers(served.name, version))


def ask_all(pair: Pair, allowances: Allowances, numbers: Callable[[str, int], range]) -> int:
    """How many pairs were compared; fails where answers differ that should not."""
    count = 0
    found = []
    for case in drawn(pair, numbers):
        count += 1
        differing = pair.ask(case, lambda each, case=case: allowances.allows(case, each))
        found += [f"{case}\n    {path}: {a!r:.200} | {b!r:.200}" for path, a, b in differing]
    assert not found, f"{len(found)} differences, Kafka's value first\n" + "\n".join(found[:40])
    return count


def test_every_api_answers_as_apache_kafka_does(pair: Pair) -> None:
    assert ask_all(pair, Allowances(), few) > 300


# Walks, in the quick run and in the long one, and how many requests each has.
FEW_WALKS, MANY_WALKS = range(8), range(400)
FEW_TRANSACTION_WALKS = range(24)
WALK_STEPS = 60


def walk_all(pair: Pair, numbers: range) -> None:
    allowances = Allowances()
    for number in numbers:
        walk = ConsumerWalk(number)
        for step in range(WALK_STEPS):
            case = walk.next()
            theirs, ours = pair.answers(case)
            found = [
                each for each in differences(theirs, ours) if not allowances.allows(case, each)
            ]
            assert not found, f"step {step}, Kafka's value first: {case}\n{found}"
            walk.answered(case, theirs)


def test_members_of_the_consumer_protocol_are_told_what_apache_kafka_tells(pair: Pair) -> None:
    walk_all(pair, FEW_WALKS)


@pytest.mark.slow
def test_members_of_many_groups_are_told_what_apache_kafka_tells(pair: Pair) -> None:
    walk_all(pair, MANY_WALKS)


@pytest.fixture(scope="module")
def producing(
    talks: tuple[Talk, Talk], theirs: ApacheKafka, ours: BrokerProcess
) -> Iterator[tuple[ProducerSide, ProducerSide]]:
    sides = ProducerSide(theirs.bootstrap), ProducerSide(ours.bootstrap)
    for side in sides:
        side.ready()
    yield sides
    for side in sides:
        side.close()


def walk_transactions(sides: tuple[ProducerSide, ProducerSide], numbers: range) -> None:
    allowances = Allowances()
    for number in numbers:
        walk = TransactionWalk(number)
        for side in sides:
            side.create(walk.topic, PARTITIONS)
        for step in range(WALK_STEPS):
            case = walk.next()
            theirs, ours = (side.settled(case) for side in sides)
            for side in sides:
                side.complete(walk.ids)
            found = [
                each
                for each in differences(theirs, ours)
                if each[0].endswith("error_code") or not allowances.allows(case, each)
            ]
            assert not found, f"step {step}, Kafka's value first: {case}\n{found}"
            walk.answered(case, theirs)
        for partition in range(PARTITIONS):
            for isolation_level in (0, 1):
                by_kafka, here = (
                    side.seen(walk.topic, partition, isolation_level) for side in sides
                )
                assert here == by_kafka, f"walk {number}, {partition}, {isolation_level}"


def test_producers_are_told_what_apache_kafka_tells(
    producing: tuple[ProducerSide, ProducerSide],
) -> None:
    walk_transactions(producing, FEW_TRANSACTION_WALKS)


@pytest.mark.slow
def test_many_producers_are_told_what_apache_kafka_tells(
    producing: tuple[ProducerSide, ProducerSide],
) -> None:
    walk_transactions(producing, MANY_WALKS)


def test_one_request_changes_one_credential_of_a_user(
    theirs: ApacheKafka, ours: BrokerProcess
) -> None:
    """By users, not by mechanisms (KRaft); two changes are refused both, and a user's first refusal stands."""

    def results(bootstrap: str, *changes: tuple[str, int, int | None]) -> list[tuple[Any, ...]]:
        deletions = [
            ScramCredentialDeletion(name=user, mechanism=mechanism)
            for user, mechanism, iterations in changes
            if iterations is None
        ]
        upsertions = [
            ScramCredentialUpsertion(
                name=user, mechanism=mechanism, iterations=count, salt=b"s", salted_password=b"p"
            )
            for user, mechanism, count in changes
            if count is not None
        ]
        request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
        with RawClient(bootstrap) as client:
            answered = client.ask(request, 0).results
        return sorted((each.user, each.error_code, each.error_message) for each in answered)

    sha_256, sha_512 = 1, 2
    for changes in (
        (("two", sha_256, 4096), ("two", sha_512, 4096), ("one", sha_256, 4096)),
        (("one", sha_256, None), ("one", sha_512, 4096)),
        (("one", sha_256, 4096), ("one", sha_512, 1)),
        (("one", sha_256, 1), ("one", sha_512, 4096), ("one", sha_512, 4096)),
        (("one", sha_512, None), ("one", sha_256, 4096)),
        (("one", sha_256, 4096), ("one", sha_256, 4096), ("one", sha_256, 1)),
        (("one", sha_256, None), ("one", sha_256, None)),
        (("one", sha_256, None),),
    ):
        assert results(ours.bootstrap, *changes) == results(theirs.bootstrap, *changes), changes


def test_clients_are_told_what_to_push_as_by_apache_kafka(
    theirs: ApacheKafka, ours: BrokerProcess
) -> None:
    talks = TelemetryTalk(theirs.bootstrap), TelemetryTalk(ours.bootstrap)
    with ThreadPoolExecutor() as both:
        list(both.map(TelemetryTalk.run, talks))
    differing = [
        pair for pair in zip(*(talk.said for talk in talks), strict=True) if pair[0] != pair[1]
    ]
    assert not differing, "\n".join(f"{a}\n    {b}" for a, b in differing)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_requests_are_answered_as_apache_kafka_does(pair: Pair) -> None:
    allowances = Allowances()
    assert ask_all(pair, allowances, many) >= MANY_PAIRS_MIN
    assert not allowances.unused()


# Talks about SASL, in the quick run and in the long one.
FEW_TALKS, MANY_TALKS = range(30), range(600)


@pytest.fixture(scope="module")
def doors(theirs: ApacheKafka, ours: BrokerProcess) -> tuple[str, str]:
    """The listeners with authentication of both brokers, with the user created."""
    for plain in (theirs.bootstrap, ours.bootstrap):
        sasl_talks.prepare(plain)
    name = sasl_talks.LISTENER
    asking = theirs.addresses[name], ours.address(name)
    for each in asking:
        wait_until("the user of SCRAM", lambda door=each: sasl_talks.gets_in(door))
    return asking


def test_tokens_are_given_and_used_as_by_apache_kafka(
    doors: tuple[str, str], theirs: ApacheKafka, ours: BrokerProcess
) -> None:
    bootstraps = theirs.bootstrap, ours.bootstrap
    talks = [token_talks.TokenTalk(*where) for where in zip(doors, bootstraps, strict=True)]
    with ThreadPoolExecutor() as both:
        list(both.map(token_talks.TokenTalk.run, talks))
    said = zip(*(talk.said for talk in talks), strict=True)
    differing = [f"{theirs}\n    {ours}" for theirs, ours in said if theirs != ours]
    assert not differing, "\n".join(differing)


def talk_all(doors: tuple[str, str], numbers: range) -> None:
    for number in numbers:
        theirs, ours = (sasl_talks.talk_of(door, number) for door in doors)
        assert ours == theirs, f"talk {number}, Kafka's second"


def test_who_authenticates_is_answered_as_by_apache_kafka(doors: tuple[str, str]) -> None:
    talk_all(doors, FEW_TALKS)


@pytest.mark.slow
def test_hundreds_who_authenticate_are_answered_as_by_apache_kafka(doors: tuple[str, str]) -> None:
    talk_all(doors, MANY_TALKS)
