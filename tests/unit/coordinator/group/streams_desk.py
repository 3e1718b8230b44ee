"""Members of streams groups (KIP-1071) at a desk, which have a word count's topology."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.coordinator.group.streams_group import StreamsGroup, Task, Tasks, tasks_of
from broker.coordinator.group.streams_protocol import StreamsHeartbeatResult, task_ids
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from kafka_ds.protocol.messages.streams_groups import (
    HeartbeatTopology,
    StreamsEndpoint,
    StreamsGroupStatus,
)
from tests.requests import build
from tests.unit.coordinator.group.consumer_desk import Topics
from tests.unit.coordinator.group.group_desk import GROUP, REBALANCE_MS, GroupDesk


def internal(name: str, partitions: int = 0, **configs: str) -> dict[str, Any]:
    """A repartition or changelog topic."""
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": 0,
        "topic_configs": [{"key": key, "value": value} for key, value in configs.items()],
    }


def subtopology(subtopology_id: str, *sources: str, **more: Any) -> dict[str, Any]:
    """A subtopology that only reads these topics, unless more is said."""
    return {
        "subtopology_id": subtopology_id,
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
        **more,
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> HeartbeatTopology:
    """These subtopologies in one topology."""
    return build(HeartbeatTopology, epoch=epoch, subtopologies=list(subtopologies))


def word_count(epoch: int = 0) -> HeartbeatTopology:
    """Lines from `lines` are split into `words`; a second subtopology counts these in `counts`."""
    return topology(
        subtopology("0", "lines", repartition_sink_topics=["words"]),
        subtopology(
            "1",
            repartition_source_topics=[internal("words")],
            state_changelog_topics=[internal("counts", **{"cleanup.policy": "compact"})],
        ),
        epoch=epoch,
    )


class Streamer:
    """A thread of a Streams application between two heartbeats."""

    def __init__(
        self,
        desk: GroupDesk,
        member_id: str,
        *,
        process: str = "",
        said: HeartbeatTopology | None = None,
        endpoint: tuple[str, int] | None = None,
        instance: str | None = None,
        group: str = GROUP,
    ) -> None:
        self.desk, self.member_id, self.group = desk, member_id, group
        self.process = process or f"process of {member_id}"
        self.topology = said or word_count()
        self.endpoint, self.instance = endpoint, instance
        self.epoch = 0
        self.endpoint_epoch = -1
        self.tasks = Tasks()
        self.statuses: dict[StreamsGroupStatus, str] = {}

    def request(self, **more: Any) -> StreamsGroupHeartbeatRequest:
        """What it would say now."""
        joins = more.get("member_epoch", self.epoch) == 0
        active, standby, warmup = (task_ids(() if joins else each) for each in self.tasks)
        said: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "endpoint_information_epoch": self.endpoint_epoch,
            "rebalance_timeout_ms": REBALANCE_MS if joins else -1,
            "topology": self.topology if joins else None,
            "active_tasks": active,
            "standby_tasks": standby,
            "warmup_tasks": warmup,
            "process_id": self.process if joins else None,
            "user_endpoint": None
            if self.endpoint is None
            else StreamsEndpoint(host=self.endpoint[0], port=self.endpoint[1]),
            "client_tags": [] if joins else None,
        }
        return StreamsGroupHeartbeatRequest(**(said | more))

    def beat(self, **more: Any) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat, and take in what it is told; raises KafkaError."""
        return self.result(**more).response

    def result(self, **more: Any) -> StreamsHeartbeatResult:
        """The same, with the topics that are to be created."""
        result: StreamsHeartbeatResult = self.desk.call(self.request(**more), version=1)
        response = result.response
        self.epoch = response.member_epoch
        self.endpoint_epoch = response.endpoint_information_epoch
        self.statuses = {
            StreamsGroupStatus(each.status_code): each.status_detail
            for each in response.status or ()
        }
        active, standby, warmup = (
            response.active_tasks,
            response.standby_tasks,
            response.warmup_tasks,
        )
        if active is not None:
            self.tasks = Tasks(tasks_of(active), tasks_of(standby or ()), tasks_of(warmup or ()))
        return result

    def refused(self, **more: Any) -> ErrorCode:
        """The error that its request comes to."""
        return self.desk.refusal(self.request(**more))

    def leave(self) -> None:
        """Leave the group."""
        self.beat(member_epoch=-1)
        self.forget()

    def restart(self, member_id: str) -> None:
        """Leave for a while, and begin again under another id."""
        self.beat(member_epoch=-2)
        self.forget()
        self.member_id = member_id

    def forget(self) -> None:
        """Give everything up, to join anew."""
        self.epoch, self.tasks = 0, Tasks()


def new_desk(**sizes: int) -> tuple[GroupDesk, Topics]:
    """A desk at which tasks are assigned at once, with topics of these sizes."""
    topics = Topics(**sizes)
    return GroupDesk(
        topics,
        group_streams_initial_rebalance_delay_ms=0,
        group_streams_assignment_interval_ms=0,
        group_streams_max_standby_replicas=2,
    ), topics


def make_missing(topics: Topics, result: StreamsHeartbeatResult) -> list[str]:
    """Create what a heartbeat has found missing; returns the names."""
    for topic in result.missing_topics:
        topics.make(topic.name, topic.num_partitions)
    return [topic.name for topic in result.missing_topics]


def settle(*members: Streamer, topics: Topics | None = None) -> None:
    """Let all send heartbeats until nothing is left to do."""
    for _ in range(6):
        for member in members:
            result = member.result()
            if topics is not None:
                make_missing(topics, result)


def streams_group_of(desk: GroupDesk, group: str = GROUP) -> StreamsGroup:
    """The group as the machine has it."""
    return desk.shard.state.streams[group]


def active_in(members: Iterable[Streamer]) -> list[Task]:
    """All active tasks of these members, some perhaps twice."""
    return sorted(task for member in members for task in member.tasks.active)
