"""Shell: two brokers that get the same requests, and their answers without values that each chose itself.

Values that may differ (ids, ports, current times) are replaced by names (`_NAMED`). Lists of an answer have no order
that Kafka promises, and are compared by what their elements are about (`_KEYS`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from kafka_ds.protocol.errors import MalformedFrame
from kafka_ds.protocol.frame import decode_response
from kafka_ds.protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    CreateTopicsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    MetadataRequest,
)
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.protocol.types import NO_UUID, fields_of, is_struct
from tests.in_process import batch_of, produce_request
from tests.integration.raw_client import RawClient
from tests.peer.pair_cases import Case, asks_only, frame_of
from tests.peer.pair_values import (
    PRODUCERS_FROM,
    STRANGE_ID,
    TOPICS,
    TRANSACTED,
    WRITTEN_MS,
)
from tests.requests import build

CLOSED, NOTHING = "<closed>", "<no answer>"
# How long something that a broker does by itself may take (a topic that is known everywhere, a transaction's end).
SETTLED_S = 60.0
# After how long there is no answer: a few requests have none from Apache Kafka.
ANSWER_S = 20.0
# How long an answer that differs is asked for again, where asking changes nothing.
AGAIN_S = 10.0
# Errors with which a broker asks for patience.
TRANSIENT = (5, 14, 15, 16, 51)
NOW_MS_FROM = 1_750_000_000_000
# An id that a broker made: for a member of the classic protocol, or of the other one.
MEMBER_ID = re.compile(
    r"(?:[a-zA-Z]*-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|^[A-Za-z0-9_-]{22}$"
)

# Fields whose value is each broker's own affair.
_NAMED = {
    "throttle_time_ms": lambda value: "<time>",
    "port": lambda value: "<port>",
    "cluster_id": lambda value: value and "<cluster>",
    "log_dir": lambda value: "<path>",
    "total_bytes": lambda value: "<bytes>",
    "usable_bytes": lambda value: "<bytes>",
    "session_id": lambda value: value and "<session>",
    "broker_epoch": lambda value: "<epoch>",
    "error_message": lambda value: "<text>" if value else value,
    "batch_index_error_message": lambda value: "<text>" if value else value,
    "member_id": lambda value: value and MEMBER_ID.sub("<member>", value),
    "leader": lambda value: MEMBER_ID.sub("<member>", value) if isinstance(value, str) else value,
    "documentation": lambda value: "<text>" if value else value,
}  # fmt: skip
# What an element of a list is about, the first of these that it has.
_KEYS = (
    ("api_key",), ("resource_type", "resource_name"), ("topic", "topic_id"), ("name", "topic_id"), ("topic_name",),
    ("name",), ("topic",), ("topic_id",), ("partition_index",), ("partition_id",), ("index",), ("partition",),
    ("group_id",), ("key",), ("transactional_id",), ("member_id",), ("node_id",), ("broker_id",), ("producer_id",),
    ("replica_id",), ("feature",), ("log_dir",), ("batch_index",), ("entity",), ("entity_type",), ("user",),
)  # fmt: skip


class PairSide:
    """One broker and a connection to it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client: RawClient | None = None
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._producers: dict[int, int] = {}
        self._correlation_id = 0

    @property
    def client(self) -> RawClient:
        if self._client is None:
            self._client = RawClient(self.bootstrap, timeout_s=ANSWER_S)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.socket.close()
            self._client = None

    def prepare(self) -> None:
        """Make the topics, and wait until each coordinator answers."""
        wanted = [
            build(CreatableTopic, name=name, num_partitions=2, replication_factor=1)
            for name in (*TOPICS, *TRANSACTED)
        ]
        self.client.ask(CreateTopicsRequest(timeout_ms=30_000, topics=wanted), 5)
        _until("topics", lambda: not any(t.error_code for t in self.topics()))
        for key, key_type in (("pg", 0), ("tx", 1)):
            asked = FindCoordinatorRequest(key=key, key_type=key_type)
            _until("a coordinator", lambda a=asked: self.client.ask(a, 2).error_code == 0)
        _until("groups", lambda: self.client.ask(ListGroupsRequest(), 4).error_code == 0)
        for number, name in enumerate((None, "tx")):
            _until("a producer", lambda n=number, i=name: self._init(n, i))
        for partition, values in ((0, [b"a", b"b", b"c"]), (1, [b"d"])):
            batch = batch_of(values, timestamp=WRITTEN_MS)
            answer = self.client.ask(produce_request("t", batch, partition), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def _init(self, number: int, name: str | None) -> bool:
        asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)
        answer = self.client.ask(asked, 4)
        self._producers[PRODUCERS_FROM + number] = answer.producer_id
        return bool(answer.error_code == 0)

    def topics(self) -> list[Any]:
        """What topics there are, their ids noted."""
        found: list[Any] = self.client.ask(MetadataRequest(topics=None), 12).topics
        self._ids = {topic.name: topic.topic_id for topic in found}
        self._names |= {topic.topic_id: topic.name for topic in found}
        return found

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.client.ask(ApiVersionsRequest(), 0)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    # -- asking -------------------------------------------------------------------------------------

    def send(self, case: Case) -> None:
        self._correlation_id += 1
        frame = frame_of(case, self._own(case.request), self._correlation_id)
        try:
            self.client.socket.sendall(frame)
            if case.served.name == "Produce" and case.request.acks == 0:
                # There is no answer but to what comes behind it.
                self.client.send(ApiVersionsRequest(), 0)
        except OSError:
            return  # the reader will see that it is closed

    def receive(self, case: Case) -> Any:
        """The answer as nested dicts, lists and values; CLOSED or NOTHING where there is none."""
        version = case.version
        if case.damage == "version":
            version = 0  # of ApiVersions (KIP-511); others are closed
        try:
            if case.served.name == "Produce" and case.request.acks == 0:
                self.client.receive(ApiVersionsRequest(), 0)
                return NOTHING
            data = self.client.receive_exactly(4)
            data = self.client.receive_exactly(int.from_bytes(data, "big"))
        except (ConnectionError, TimeoutError) as error:
            self.close()
            return CLOSED if isinstance(error, ConnectionError) else NOTHING
        try:
            _, answer = decode_response(RESPONSES[case.served.api_key], memoryview(data), version)
        except MalformedFrame as error:
            self.close()
            return f"<unreadable: {error}>"
        return self._plain(answer)

    def _own(self, value: Any) -> Any:
        """The same with this broker's ids for symbols."""
        if is_struct(type(value)):
            fields = fields_of(type(value))
            return type(value)(**{f.name: self._own(getattr(value, f.name)) for f in fields})
        if isinstance(value, list):
            return [self._own(each) for each in value]
        if isinstance(value, bytes) and value.startswith(b"id-of-") and len(value) == 16:
            name = value[6:].rstrip(b"\0").decode()
            return self._ids.get(name, STRANGE_ID)
        if isinstance(value, int) and value in self._producers:
            return self._producers[value]
        return value

    def _plain(self, value: Any, name: str = "") -> Any:
        if is_struct(type(value)):
            names = [field.name for field in fields_of(type(value))]
            return {name: self._plain(getattr(value, name), name) for name in names}
        if isinstance(value, list):
            return [self._plain(each, name) for each in value]
        if name in _NAMED:
            return _NAMED[name](value)
        if name == "producer_id":
            known = {own: given for given, own in self._producers.items()}
            return known.get(value, "<producer>" if 0 <= value < 90_000 else value)
        if isinstance(value, bytes) and len(value) == 16 and name.endswith("id"):
            return self._id(value)
        if isinstance(value, memoryview):
            return bytes(value).hex()
        if isinstance(value, int) and NOW_MS_FROM < value < 2 * NOW_MS_FROM:
            return "<now>"
        return value

    def _id(self, value: bytes) -> str:
        if value == NO_UUID:
            return "<none>"
        return (
            "<strange>"
            if value == STRANGE_ID
            else f"<id of {self._names.get(value, 'something new')}>"
        )


def _until(what: str, condition: Any, seen: object = "") -> None:
    deadline = time.monotonic() + SETTLED_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {SETTLED_S:g} s for {what} {seen}"
        time.sleep(0.05)


class Pair:
    """Apache Kafka and us."""

    def __init__(self, theirs: PairSide, ours: PairSide) -> None:
        self.theirs = theirs
        self.ours = ours

    def prepare(self) -> None:
        for side in (self.theirs, self.ours):
            side.prepare()
        self.settle()

    def settle(self) -> None:
        """Wait until both know the same topics."""

        def known(side: PairSide) -> dict[str, tuple[int, int]]:
            return {
                t.name: (t.error_code, len(t.partitions)) for t in side.topics() if t.name[0] != "_"
            }

        def are_same() -> bool:
            both[:] = known(self.theirs), known(self.ours)
            return both[0] == both[1]

        both: list[Any] = []
        _until("the same topics on both sides", are_same, both)

    def answers(self, case: Case) -> tuple[Any, Any]:
        """What both answer, Apache Kafka first."""
        for side in (self.theirs, self.ours):
            side.send(case)
        return self.theirs.receive(case), self.ours.receive(case)

    def ask(self, case: Case, is_meant: Callable[[Difference], bool]) -> list[Difference]:
        """The unexpected differences; requests that change nothing are repeated, in case one broker was early."""
        deadline = time.monotonic() + AGAIN_S
        while True:
            theirs, ours = self.answers(case)
            found = [each for each in differences(theirs, ours) if not is_meant(each)]
            patience = _has_transient(theirs) or _has_transient(ours) or asks_only(case.served)
            if not found or not patience or time.monotonic() > deadline:
                if case.served.name in ("CreateTopics", "DeleteTopics", "CreatePartitions"):
                    self.settle()
                return found
            time.sleep(0.05)


def _has_transient(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("error_code") in TRANSIENT or any(map(_has_transient, value.values()))
    return isinstance(value, list) and any(map(_has_transient, value))


Difference = tuple[str, Any, Any]


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[Difference]:
    """Each place in which two answers differ, with both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in theirs:
            yield from differences(theirs[name], ours[name], f"{path}.{name}" if path else name)
    elif isinstance(theirs, list) and isinstance(ours, list):
        yield from _list_differences(theirs, ours, path)
    elif theirs != ours or (theirs is None) is not (ours is None):
        yield path, theirs, ours


def _list_differences(theirs: list[Any], ours: list[Any], path: str) -> Iterator[Difference]:
    left, right = _by_key(theirs), _by_key(ours)
    for key in sorted({*left, *right}):
        if key not in left or key not in right:
            yield f"{path}[{key}]", left.get(key, "<absent>"), right.get(key, "<absent>")
        else:
            yield from differences(left[key], right[key], f"{path}[{key}]")


def _by_key(elements: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for element in sorted(elements, key=repr):
        key, count = _key(element), 0
        while f"{key}{'*' * count}" in found:
            count += 1
        found[f"{key}{'*' * count}"] = element
    return found


def _key(element: Any) -> str:
    if not isinstance(element, dict):
        return str(element)
    for names in _KEYS:
        if all(name in element for name in names):
            return "/".join(_key_part(element[name]) for name in names)
    return ""


def _key_part(value: Any) -> str:
    return str(sorted(map(str, value))) if isinstance(value, list) else str(value)
