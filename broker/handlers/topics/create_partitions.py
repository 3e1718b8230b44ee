"""Shell: CreatePartitions 0-3: adds partitions to topics; each topic has its own result.

- The count is the new total. Not above the present number: INVALID_PARTITIONS; the same topic twice: INVALID_REQUEST;
  unknown: UNKNOWN_TOPIC_OR_PARTITION; more than 10,000 new partitions in a request: POLICY_VIOLATION.
- Assignments, if given, are those of the new partitions in order: one for each, with the topic's number of replicas, on
  brokers that exist and are named once, else INVALID_REPLICA_ASSIGNMENT.
- One request is one commit; the new partitions take appends when it is answered.
- With validate_only the answer is the same and nothing is created.

Versions: 2 flexible; 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
Left out: nothing.
"""

from __future__ import annotations

from broker.controller.topics import MorePartitions
from broker.handlers.time_limit import within
from broker.registry import RequestContext, serves
from kafka_ds.protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse
from kafka_ds.protocol.messages.topics import CreatePartitionsTopic, CreatePartitionsTopicResult


@serves(CreatePartitionsRequest, versions="0-3", forwarded=True)
async def grow(
    request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add the partitions, or say why not."""
    wanted = [_wanted(topic) for topic in request.topics]
    decision = context.broker.metadata_driver.decide(
        lambda c: c.create_partitions(wanted, validate_only=request.validate_only)
    )
    results = await within(request.timeout_ms, decision)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error, error_message=result.message
            )
            for result in results
        ]
    )


def _wanted(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = tuple(tuple(each.broker_ids) for each in topic.assignments)
    return MorePartitions(name=topic.name, count=topic.count, assignments=assignments)
