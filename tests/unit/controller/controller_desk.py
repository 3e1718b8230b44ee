"""A controller whose decisions are durable at once, and helpers to send it requests."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from broker.controller.brokers import HeartbeatReply
from broker.controller.configs import (
    Alteration,
    ConfigOperation,
    ConfigRules,
    FeatureUpdate,
    ResourceAlteration,
    ResourceResult,
)
from broker.controller.controller import Controller, ControllerResult, NewTopic
from broker.controller.controller_stats import ControllerStats, unclean_line
from broker.controller.draft import PartitionChangeResult
from broker.controller.isr import AlterPartition, AlterPartitionResult
from broker.controller.reassignment import Reassignment
from broker.metadata.events import (
    RECOVERED,
    ClusterCreated,
    Endpoint,
    Event,
    PartitionRegistration,
    from_json,
    to_json,
)
from broker.metadata.features import ELR_FEATURE, supported_features
from broker.metadata.image import MetadataImage
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages.configs import TOPIC_RESOURCE
from kafka_ds.topic.metadata_table import MetadataPosition
from tests.fakes.settings import controller_defaults

SESSION_TIMEOUT_MS = 9000


def accept_configs(_: Mapping[str, str]) -> None:
    """What a topic may be set to is no matter here."""


RULES = ConfigRules(
    check_topic=lambda before, after: None,
    check_broker=lambda changes, image: None,
    list_of=lambda kind, name: None,
    check_group=lambda own: None,
)


class ClusterDesk:
    """A cluster of brokers that are all decided for here."""

    check_configs = staticmethod(accept_configs)

    def __init__(self, *brokers: int, **defaults: Any) -> None:
        self.uuids = count(1)
        self.racks: Mapping[int, str] = {}
        self.defaults = controller_defaults(**defaults)
        self.image = MetadataImage()
        self.stats = ControllerStats()
        self.unclean_lines: list[str] = []
        # What is durable, as the log has it.
        self.log: list[list[dict[str, Any]]] = []
        self.now_ms = 0
        self.controller = self.new_controller()
        self.make_durable([ClusterCreated(cluster_id="c")])
        for broker in brokers:
            self.register(broker)
            self.beat(broker)

    def new_controller(self) -> Controller:
        return Controller(
            self.image,
            defaults=self.defaults,
            new_uuid=self.new_uuid,
            check_configs=self.check_configs,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )

    def new_uuid(self) -> bytes:
        # The first hundred are reserved in Kafka.
        return (100 + next(self.uuids)).to_bytes(16, "big")

    def take(self, decision: ControllerResult[Any]) -> Any:
        if decision.events:
            self.make_durable(decision.events)
        return decision.result

    def make_durable(self, events: Sequence[Event]) -> None:
        version = self.image.version + 1
        if unclean := self.stats.count(self.image, events):
            self.unclean_lines.append(unclean_line(unclean))
        for sequence, event in enumerate(events):
            self.image.replay(event, MetadataPosition(version, sequence))
        self.log.append([json.loads(json.dumps(to_json(event))) for event in events])
        self.controller.committed(version, events)

    def counted(self) -> tuple[int, int]:
        """How many elections were unclean, and how many from the ELR."""
        return self.stats.unclean_leader_elections, self.stats.elections_from_elr

    def replayed(self) -> MetadataImage:
        image = MetadataImage()
        for version, events in enumerate(self.log):
            for sequence, event in enumerate(events):
                image.replay(from_json(event), MetadataPosition(version, sequence))
        return image

    # -- brokers ------------------------------------------------------------------------------

    def epoch(self, broker: int) -> int:
        return self.image.brokers[broker].broker_epoch

    def register(self, broker: int, previous: int = -1, **options: Any) -> bool:
        options.setdefault("incarnation_id", self.new_uuid())
        options.setdefault("features", supported_features())
        clean: bool = self.take(
            self.controller.register_broker(
                broker,
                endpoints=[Endpoint(listener="PLAINTEXT", host="h", port=broker)],
                rack=self.racks.get(broker),
                previous_broker_epoch=previous,
                **options,
            )
        )
        return clean

    def restart(self, broker: int, *, clean: bool, **options: Any) -> None:
        """The broker's process restarts, within its session timeout."""
        self.now_ms += SESSION_TIMEOUT_MS
        for other, known in self.image.brokers.items():
            if other != broker and not known.fenced:
                self.beat(other)
        self.expire()
        self.register(broker, self.epoch(broker) if clean else -1, **options)

    def beat(self, broker: int, **options: Any) -> HeartbeatReply:
        options.setdefault("metadata_version", self.image.version)
        reply: HeartbeatReply = self.take(
            self.controller.heartbeat(
                broker,
                options.pop("broker_epoch", self.epoch(broker)),
                want_fence=options.pop("want_fence", False),
                want_shut_down=options.pop("want_shut_down", False),
                now_ms=self.now_ms,
                **options,
            )
        )
        return reply

    def expire(self) -> None:
        self.take(self.controller.expire_sessions(self.now_ms))

    def fence(self, *brokers: int) -> None:
        """These brokers are not heard of any more, at once."""
        self.now_ms += SESSION_TIMEOUT_MS
        for other, known in self.image.brokers.items():
            if other not in brokers and not known.fenced:
                self.beat(other)
        self.expire()

    # -- topics -------------------------------------------------------------------------------

    def create(self, *assignments: tuple[int, ...], name: str = "t", **configs: str) -> None:
        settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
        topic = NewTopic(name=name, assignments=tuple(enumerate(assignments)), configs=settings)
        (result,) = self.take(self.controller.create_topics([topic]))
        assert result.error == ErrorCode.NONE, result

    def partition(self, index: int = 0, name: str = "t") -> PartitionRegistration:
        return self.image.topics[name].partitions[index]

    def alter_isr(self, *isr: int, by: int | None = None, **changes: Any) -> AlterPartitionResult:
        """The leader of t-0, or the named broker, proposes this ISR; by default with current epochs."""
        present = self.partition()
        leader = present.leader if by is None else by
        epochs = tuple(
            (each, self.epoch(each) if each in self.image.brokers else 1) for each in isr
        )
        wanted: dict[str, Any] = {
            "topic_id": self.image.topics["t"].topic_id,
            "partition": 0,
            "new_isr": epochs,
            "leader_epoch": present.leader_epoch,
            "partition_epoch": present.partition_epoch,
            "leader_recovery_state": RECOVERED,
        }
        (result,) = self.take(
            self.controller.alter_partitions(
                leader, self.epoch(leader), [AlterPartition(**(wanted | changes))]
            )
        )
        altered: AlterPartitionResult = result
        return altered

    def reassign(
        self, *target: int, name: str = "t", partition: int = 0, **options: Any
    ) -> PartitionChangeResult:
        """Move a partition; without a target: cancel the move."""
        wanted = Reassignment(topic=name, partition=partition, replicas=target or None)
        (result,) = self.take(self.controller.alter_reassignments([wanted], **options))
        moved: PartitionChangeResult = result
        return moved

    def set_config(
        self, name: str, value: str | None, resource: str = "t", *, kind: int = TOPIC_RESOURCE
    ) -> ResourceResult:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        wanted = ResourceAlteration(
            resource_type=kind,
            resource_name=resource,
            alterations=(Alteration(name=name, value=value, operation=operation),),
        )
        (result,) = self.take(self.controller.alter_configs([wanted], RULES))
        altered: ResourceResult = result
        return altered

    def set_elr(self, level: int) -> None:
        update = FeatureUpdate(name=ELR_FEATURE, level=level, allows_downgrade=True)
        (result,) = self.take(self.controller.update_features([update]))
        assert result.error == ErrorCode.NONE, result
