-- Where are share groups in their partitions, and which records are done with? As of their coordinators' latest checkpoint.
SELECT noted.group_id, known.topic, noted.partition, noted.start_offset, noted.state_epoch, noted.leader_epoch,
       noted.delivery_complete_count, noted.state_batches,
       CASE WHEN noted.start_offset >= 0
         THEN greatest(logs.high_watermark - noted.start_offset - noted.delivery_complete_count, 0)
       END AS lag,
       noted.topic_id, noted.event_time AS noted_at, noted.coordinator_partition, noted.broker_id
FROM ${offsets} AS noted
JOIN partition_offsets AS coordinator
ON coordinator.topic = '__share_group_state' AND coordinator.partition = noted.coordinator_partition
  AND coordinator.leader_epoch = noted.coordinator_epoch AND coordinator.broker_id = noted.broker_id
JOIN partitions AS known ON known.topic_id = noted.topic_id AND known.partition = noted.partition
LEFT JOIN partition_offsets AS logs ON logs.topic_id = noted.topic_id AND logs.partition = noted.partition
WHERE noted.kind = 'share_state'
