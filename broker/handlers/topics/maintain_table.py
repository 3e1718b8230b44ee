"""Shell: MaintainTable 0: what the leader does to a partition's table now and then, at once (kafka-ds only).

- OPTIMIZE: small files are merged and rows below the log start leave their files, as `lake.maintenance.interval.ms` has
  it done. EXPIRE: the log start moves as the topic's retention says, and what lies below it is removed from the table,
  as `remote.log.manager.task.interval.ms` has it done. The answer comes when it is done, and has figures.
- A partition without a table: INVALID_REQUEST. Not led here (any more), or the lake's end is not known yet:
  NOT_LEADER_OR_FOLLOWER; worker or store away: KAFKA_STORAGE_ERROR. Its tiering is paused, or it is being optimized
  already: OPERATION_NOT_ATTEMPTED, with the reason. Who may ALTER the topic may ask.

Versions: 0. Key 20003, which no release of Apache Kafka has, and which is not advertised.
"""

from __future__ import annotations

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import MaintainTableRequest, MaintainTableResponse
from kafka_ds.protocol.messages.brokers import EXPIRE, OPTIMIZE


@serves(MaintainTableRequest, versions="0", internal=True, pipelined=True)
async def maintain_table(
    request: MaintainTableRequest, context: RequestContext
) -> MaintainTableResponse:
    """Do it, and say what was done."""
    log = context.broker.replica_manager.get(request.topic, request.partition).log
    remote_log_manager = context.broker.remote_log_manager
    if remote_log_manager is None or not log.config.has_table:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {request.topic} is not tiered")
    if request.operation == OPTIMIZE:
        done = await remote_log_manager.optimize(log.topic_id, log.partition)
        return MaintainTableResponse(
            files_before=done.files_before,
            files_after=done.files_after,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            rows=done.rows,
            expired_rows=done.expired_rows,
            log_start_offset=log.log_start_offset,
        )
    if request.operation != EXPIRE:
        message = f"there is no operation {request.operation}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    swept = await remote_log_manager.expire(log.topic_id, log.partition)
    return MaintainTableResponse(
        files_before=swept.files,
        bytes_before=swept.size_bytes,
        expired_segments=swept.segments,
        log_start_offset=log.log_start_offset,
    )
