-- Which offsets have groups committed? As of their coordinators' latest checkpoint (lake.offsets.interval.ms).
SELECT noted.group_id, noted.topic, noted.topic_id, noted.partition, noted.committed_offset,
       noted.committed_leader_epoch, noted.metadata, noted.commit_time, noted.event_time AS noted_at,
       noted.coordinator_partition, noted.broker_id
FROM ${offsets} AS noted
JOIN partition_offsets AS coordinator
ON coordinator.topic = '__consumer_offsets' AND coordinator.partition = noted.coordinator_partition
  AND coordinator.leader_epoch = noted.coordinator_epoch AND coordinator.broker_id = noted.broker_id
WHERE noted.kind = 'offset'
