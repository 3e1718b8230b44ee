"""Shell: StreamsGroupHeartbeat 0-1: join, stay in, and leave a streams group (KIP-1071).

- Epoch 0 joins and brings the topology, -1 leaves, -2 leaves for a while (a static member). The answer has the member's
  epoch, its tasks if they have changed, and what keeps the group from its tasks. Missing internal topics are created,
  if the client may CREATE them; why they could not be is told with the next heartbeat.
- A member that may not DESCRIBE all topics of its topology is refused, and so are names that no topic may have and
  Kafka's own topics (STREAMS_INVALID_TOPOLOGY).
- Refused: INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH,
  FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, STREAMS_INVALID_TOPOLOGY. While streams.version is 0, or
  group.coordinator.rebalance.protocols lacks streams: UNSUPPORTED_VERSION.

Versions: 1 the full description of the topology (KIP-1331), which is never asked for.
Left out: changes of the topology, warm-up tasks, source topics by expressions (as in Kafka).
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.controller.topics import NewTopic
from broker.coordinator.group.streams_protocol import StreamsHeartbeatResult
from broker.handlers.common import check_streams_groups
from broker.handlers.groups.common import client_of
from broker.handlers.responses import then
from broker.metadata.acls import AclOperation, ResourceType
from broker.metadata.topic_names import INTERNAL_TOPICS, why_illegal
from broker.registry import RequestContext, serves
from broker.security.authorization.permissions import may
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from kafka_ds.protocol.messages.streams_groups import (
    HeartbeatStatus,
    HeartbeatTopology,
    StreamsGroupStatus,
    topics_of_topology,
)


@serves(StreamsGroupHeartbeatRequest, versions="0-1")
def streams_group_heartbeat(
    request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> StreamsGroupHeartbeatResponse | Awaitable[StreamsGroupHeartbeatResponse]:
    """Process a member's heartbeat; the answer has its tasks."""
    check_streams_groups(context.broker)
    if request.topology is not None:
        _check_names(request.topology)
    if not request.group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")

    def finish(result: StreamsHeartbeatResult) -> StreamsGroupHeartbeatResponse:
        if result.missing_topics:
            _create(result.missing_topics, result.response, context)
        return result.response

    answer = context.broker.groups.submit(request.group_id, request, client_of(context))
    return then(answer, finish)


def _check_names(topology: HeartbeatTopology) -> None:
    names = dict.fromkeys(topics_of_topology(topology))
    if internal := [name for name in names if name in INTERNAL_TOPICS]:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited.",
        )
    if illegal := [name for name in names if why_illegal(name) is not None]:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Topic names {','.join(illegal)} are not valid topic names.",
        )


def _create(
    topics: tuple[NewTopic, ...], response: StreamsGroupHeartbeatResponse, context: RequestContext
) -> None:
    """Have missing topics created; the status says why some are not."""
    names = [topic.name for topic in topics]
    if not may(context, AclOperation.CREATE, log_if_denied=False):
        denied = [
            name
            for name in names
            if not may(context, AclOperation.CREATE, ResourceType.TOPIC, name)
        ]
        if denied:
            _add(response, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
            return
    creation = context.broker.groups.streams_topics
    errors = creation.errors(names)
    if errors:
        shown = ", ".join(f"{name} ({why})" for name, why in errors.items())
        _add(response, f"Creation failed: {shown}.")
    # Until a member has come twice.
    creation.create(topics, remember_ms=2 * response.heartbeat_interval_ms)


def _add(response: StreamsGroupHeartbeatResponse, text: str) -> None:
    statuses = response.status = response.status or []
    for status in statuses:
        if status.status_code == StreamsGroupStatus.MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {text}"
            return
    statuses.append(
        HeartbeatStatus(status_code=StreamsGroupStatus.MISSING_INTERNAL_TOPICS, status_detail=text)
    )
