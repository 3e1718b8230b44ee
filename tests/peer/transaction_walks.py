"""Pure: producers under two transactional ids as they begin, write and end transactions, drawn at random.

- A walk is determined by its number and by the answers of Apache Kafka: a producer goes on from what it was told.
- Each walk has a topic and a group to itself. A client is of the first protocol or of the second (KIP-890) as long as
  it lives; others under its transactional id may be of the other.
- Nobody does what is answered otherwise here on purpose (docs/concepts/transactions.md): an epoch that is old is not
  named in InitProducerId, no partition hears of an epoch that the coordinator does not know, and no client of the
  second protocol ends a transaction when one of the first has followed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import broker.handlers  # noqa: F401 - registers what is served
from broker.registry import REGISTRY
from kafka_ds.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DeleteGroupsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListTransactionsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kafka_ds.protocol.messages.data import PartitionProduceData, TopicProduceData
from kafka_ds.protocol.messages.group_offsets import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafka_ds.protocol.messages.offsets import ListOffsetsPartition
from kafka_ds.protocol.messages.transactions import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    TxnOffsetCommitRequestPartition,
    WritableTxnMarker,
)
from kafka_ds.records.batch import Record, build_batch
from tests.peer.group_talks import commit, delete_offsets
from tests.peer.pair_cases import Case
from tests.peer.pair_values import WRITTEN_MS, symbol
from tests.requests import build

TIMEOUT_MS = 600_000
PARTITIONS = 2
_SERVED = {served.request: served for served in REGISTRY}
# The versions of each request: of clients of the first protocol, and of the second.
_VERSIONS: dict[type, tuple[tuple[int, ...], tuple[int, ...]]] = {
    AddOffsetsToTxnRequest: ((0, 1, 2, 3, 4), (4,)),
    AddPartitionsToTxnRequest: ((0, 1, 2, 3), (4, 5)),
    DeleteGroupsRequest: ((2,), (2,)),
    DescribeProducersRequest: ((0,), (0,)),
    DescribeTransactionsRequest: ((0,), (0,)),
    EndTxnRequest: ((0, 1, 2, 3, 4), (5,)),
    InitProducerIdRequest: ((3, 4, 5), (4, 5)),
    ListOffsetsRequest: ((2, 5, 7), (8, 9, 10)),
    ListTransactionsRequest: ((0, 1, 2), (2,)),
    OffsetCommitRequest: ((8,), (9,)),
    OffsetDeleteRequest: ((0,), (0,)),
    OffsetFetchRequest: ((8, 9), (9,)),
    ProduceRequest: ((3, 7, 9, 10, 11), (12, 13)),
    TxnOffsetCommitRequest: ((0, 1, 2, 3, 4), (5,)),
    WriteTxnMarkersRequest: ((1,), (2,)),
}
# Of AddPartitionsToTxn, and of EndTxn which producer follows.
FIRST_VERSION_FOR_BROKERS = 4
FIRST_VERSION_THAT_TELLS = 5
# Of InitProducerId; the next one has two-phase commit.
STABLE_VERSION = 5


@dataclass(slots=True)
class _Producer:
    """What a producer was told last, and the sequences that it sends next, by partition."""

    id: int
    epoch: int
    protocol: int
    next: dict[int, int] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)


class TransactionWalk:
    """Some transactions."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._random = Random(number)
        # By itself: who may ask for two-phase commit leaves the rest of the walk as it is.
        self._random_two_phase = Random(number)
        self.topic = f"w{number}"
        self._group = f"walked-{number}"
        self.ids = [f"walk-{number}-{letter}" for letter in "ab"]
        self._now: dict[str | None, _Producer] = {}
        self._past: dict[str | None, list[_Producer]] = {None: [], **{i: [] for i in self.ids}}
        # By the request's identity: who writes, and what comes next if it is taken.
        self._writes: dict[int, tuple[_Producer, dict[int, int]]] = {}
        self._asked: list[Case] = []
        # Whether there is a group for both: Kafka has one also while its first offsets are not committed yet.
        self._has_group = False
        self._protocols = self._random.choice(((0,), (1,), (0, 1)))
        self._protocol = 0

    def next(self) -> Case:
        """What somebody asks now."""
        if self._asked and self._is_rare(0.1):
            return self._again()
        draw = self._random.choices(
            (
                self._init, self._produce, self._add_partitions, self._add_offsets, self._commit_offsets,
                self._end, self._mark, self._describe, self._list, self._producers, self._list_offsets,
                self._commit, self._fetch_offsets, self._delete,
            ),
            (9, 30, 10, 6, 10, 16, 3, 5, 4, 5, 4, 2, 5, 2),
        )[0]  # fmt: skip
        self._protocol = self._random.choice(self._protocols)
        request = draw()
        versions = _VERSIONS[type(request)][self._protocol]
        version = self._random.choice(versions)
        if isinstance(request, AddPartitionsToTxnRequest):
            self._as_brokers_ask(request, version)
        if isinstance(request, InitProducerIdRequest) and version == STABLE_VERSION:
            version += self._random_two_phase.randrange(2)
            request.enable2_pc = version > STABLE_VERSION and self._random_two_phase.random() < 0.5
        case = Case(
            served=_SERVED[type(request)], version=version, number=self._number, request=request
        )
        self._asked.append(case)
        return case

    def _again(self) -> Case:
        """An answer was lost."""
        case = self._random.choice(self._asked[-3:])
        if isinstance(case.request, InitProducerIdRequest) and case.request.producer_id >= 0:
            case = self._asked[-1]  # Its epoch would be old.
        return case

    def answered(self, case: Case, answer: dict[str, Any]) -> None:
        """What it was told."""
        request = case.request
        if isinstance(request, InitProducerIdRequest | EndTxnRequest):
            tells = (
                isinstance(request, InitProducerIdRequest)
                or case.version >= FIRST_VERSION_THAT_TELLS
            )
            if tells and not answer["error_code"]:
                producer = answer["producer_id"], answer["producer_epoch"]
                self._begin(request.transactional_id, *producer, self._protocol)
        elif isinstance(request, OffsetCommitRequest):
            self._has_group = not answer["topics"][0]["partitions"][0]["error_code"]
        elif isinstance(request, OffsetDeleteRequest | DeleteGroupsRequest):
            self._has_group = False
        elif isinstance(request, ProduceRequest):
            who, following = self._writes[id(request)]
            for told in answer["responses"][0]["partition_responses"]:
                if not told["error_code"]:
                    who.next[told["index"]] = following[told["index"]]

    def _begin(self, name: str | None, producer_id: int, epoch: int, protocol: int) -> None:
        known = self._now.get(name)
        if known is not None and (known.id, known.epoch) == (producer_id, epoch):
            return
        if known is not None:
            self._past[name].append(known)
        self._now[name] = _Producer(producer_id, epoch, protocol)

    def _is_rare(self, share: float) -> bool:
        return self._random.random() < share

    def _who(self, *, ahead: int = 1) -> tuple[str, _Producer]:
        """A transactional id, and who speaks now, mostly its producer; `ahead`: by how much an epoch may be too new."""
        name, who = self._drawn(ahead)
        self._protocol = who.protocol
        return name, who

    def _drawn(self, ahead: int) -> tuple[str, _Producer]:
        draw = self._random
        known = [name for name in self.ids if name in self._now]
        if not known:
            return self.ids[0], _Producer(99_999, 0, self._protocol)
        name = draw.choice(known)
        now = self._now[name]
        kind = draw.choices(("now", "past", "epoch", "other", "nobody"), (82, 8, 5, 3, 2))[0]
        if kind == "past" and self._past[name]:
            return name, draw.choice(self._past[name])
        if kind == "epoch":
            epoch = max(0, now.epoch + draw.choice((-1, ahead)))
            return name, _Producer(now.id, epoch, now.protocol)
        if kind == "other":
            return name, self._now[draw.choice(known)]
        return ("never" if kind == "nobody" else name), now

    # -- producers -----------------------------------------------------------------------------------

    def _init(self) -> InitProducerIdRequest:
        name: str | None = self._random.choice([*self.ids, *self.ids, *self.ids, None])
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, producer_epoch=-1
        )
        now = self._now.get(name)
        if name is not None and now is not None and self._is_rare(0.4):
            request.producer_id, request.producer_epoch = now.id, now.epoch
        return request

    def _produce(self) -> ProduceRequest:
        draw = self._random
        if None in self._now and self._is_rare(0.1):
            self._protocol = self._now[None].protocol
            return self._idempotent()
        name, who = self._who(ahead=0)
        indexes = draw.choices(([0], [1], [0, 1]), (4, 4, 2))[0]
        return self._writing(name, who, indexes, is_transactional=True)

    def _idempotent(self) -> ProduceRequest:
        return self._writing(
            None, self._now[None], [self._random.choice((0, 1))], is_transactional=False
        )

    def _writing(
        self, name: str | None, who: _Producer, indexes: list[int], *, is_transactional: bool
    ) -> ProduceRequest:
        draw = self._random
        following = {}
        data = []
        for index in indexes:
            expected = who.next.get(index, 0)
            count = draw.choice((1, 1, 3))
            first, repeated = who.last.get(index, (0, count))
            kind = draw.choices(("next", "again", "zero", "gap"), (86, 6, 4, 4))[0]
            sequence = {"next": expected, "again": first, "zero": 0, "gap": expected + 1}[kind]
            count = repeated if kind == "again" else count
            who.last[index] = sequence, count
            following[index] = max(expected, sequence + count)
            records = [
                Record(i, WRITTEN_MS + i, None, f"{sequence + i}".encode()) for i in range(count)
            ]
            batch = build_batch(
                records,
                producer_id=who.id,
                producer_epoch=who.epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
            data.append(PartitionProduceData(index=index, records=batch))
        topic = TopicProduceData(name=self.topic, topic_id=symbol(self.topic), partition_data=data)
        request = ProduceRequest(
            transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=[topic]
        )
        self._writes[id(request)] = who, following
        return request

    def _add_partitions(self) -> AddPartitionsToTxnRequest:
        name, who = self._who()
        draw = self._random
        topics = [
            AddPartitionsToTxnTopic(
                name=self.topic, partitions=draw.choice(([0], [1], [0, 1], [0, 7]))
            )
        ]
        if self._is_rare(0.05):
            other = draw.choice(("missing", "__consumer_offsets"))
            topics.append(AddPartitionsToTxnTopic(name=other, partitions=[0]))
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who.id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=topics,
        )

    def _as_brokers_ask(self, request: AddPartitionsToTxnRequest, version: int) -> None:
        """The same in versions for brokers, of more transactions."""
        if version < FIRST_VERSION_FOR_BROKERS:
            return
        asked = {request.v3_and_below_transactional_id: request}
        if self._is_rare(0.4):
            more = self._add_partitions()
            asked.setdefault(more.v3_and_below_transactional_id, more)
        request.transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=each.v3_and_below_producer_id,
                producer_epoch=each.v3_and_below_producer_epoch,
                verify_only=self._is_rare(0.6) and _all_exist(each.v3_and_below_topics),
                topics=each.v3_and_below_topics,
            )
            for name, each in asked.items()
        ]

    def _add_offsets(self) -> AddOffsetsToTxnRequest:
        name, who = self._who()
        return AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=who.id,
            producer_epoch=who.epoch,
            group_id=self._group,
        )

    def _commit_offsets(self) -> TxnOffsetCommitRequest:
        name, who = self._who()
        draw = self._random
        partitions = [
            TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=draw.randrange(100),
                committed_metadata=draw.choice((None, "m")),
            )
            for index in draw.choice(([0], [1], [0, 1], [0, 7]))
        ]
        request = build(
            TxnOffsetCommitRequest,
            transactional_id=name,
            group_id=self._group,
            producer_id=who.id,
            producer_epoch=who.epoch,
            topics=[{"name": self.topic, "partitions": partitions}],
        )
        if self._has_group and self._is_rare(0.15):
            request.member_id, request.generation_id_or_member_epoch = draw.choice(
                (("m", 1), ("m", -1), ("", 1))
            )
        return request

    def _end(self) -> EndTxnRequest:
        name, who = self._who()
        now = self._now.get(name, who)
        if who.protocol > now.protocol:
            who, self._protocol = now, now.protocol
        return EndTxnRequest(
            transactional_id=name,
            producer_id=who.id,
            producer_epoch=who.epoch,
            committed=not self._is_rare(0.4),
        )

    # -- operators -------------------------------------------------------------------------------------

    def _mark(self) -> WriteTxnMarkersRequest:
        """A marker by hand."""
        name, who = self._who()
        now = self._now.get(name, who)
        marker = build(
            WritableTxnMarker,
            producer_id=who.id,
            producer_epoch=min(who.epoch, now.epoch),
            transaction_result=self._is_rare(0.3),
            coordinator_epoch=self._random.choice((0, 0, -1)),
            transaction_version=self._random.choice((0, 1, 2)),
            topics=[{"name": self.topic, "partition_indexes": [self._random.choice((0, 1, 7))]}],
        )
        return WriteTxnMarkersRequest(markers=[marker])

    def _describe(self) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(transactional_ids=[*self.ids, "never"])

    def _list(self) -> ListTransactionsRequest:
        draw = self._random
        known = [each.id for each in self._now.values()] or [99_999]
        return ListTransactionsRequest(
            state_filters=draw.choice(
                ([], ["Ongoing"], ["Empty", "CompleteAbort"], ["CompleteCommit", "nope"])
            ),
            producer_id_filters=known,
            duration_filter=draw.choice((-1, -1, 0, 100_000)),
            transactional_id_pattern=draw.choice(
                (None, "", "walk-.*", f"walk-{self._number}", f".*-{self._number}-[a]")
            ),
        )

    def _producers(self) -> DescribeProducersRequest:
        return build(DescribeProducersRequest, name=self.topic, partition_indexes=[0, 1])

    def _list_offsets(self) -> ListOffsetsRequest:
        partitions = [
            ListOffsetsPartition(partition_index=index, timestamp=self._random.choice((-1, -3)))
            for index in range(PARTITIONS)
        ]
        return build(
            ListOffsetsRequest,
            replica_id=-1,
            isolation_level=self._random.choice((0, 1)),
            topics=[{"name": self.topic, "partitions": partitions}],
        )

    # -- the group ---------------------------------------------------------------------------------------

    def _commit(self) -> OffsetCommitRequest:
        draw = self._random
        request: OffsetCommitRequest = commit(
            self._group, draw.randrange(100), topic=self.topic, partition=draw.choice((0, 1))
        )
        return request

    def _fetch_offsets(self) -> OffsetFetchRequest:
        named = [OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0, 1])]
        group = OffsetFetchRequestGroup(
            group_id=self._group, topics=self._random.choice((None, named))
        )
        return OffsetFetchRequest(groups=[group], require_stable=self._is_rare(0.5))

    def _delete(self) -> OffsetCommitRequest | OffsetDeleteRequest | DeleteGroupsRequest:
        if not self._has_group:
            return self._commit()
        if self._is_rare(0.4):
            return DeleteGroupsRequest(groups_names=[self._group])
        request: OffsetDeleteRequest = delete_offsets(
            self._group, {self.topic: [self._random.choice((0, 1))]}
        )
        return request


def _all_exist(topics: list[AddPartitionsToTxnTopic]) -> bool:
    """Nobody asks whether what does not exist belongs to a transaction."""
    return all(topic.name != "missing" and max(topic.partitions) < PARTITIONS for topic in topics)
