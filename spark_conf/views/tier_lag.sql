-- How far is the lake behind the log? Committed offsets of tiered topics that are not in the table yet.
SELECT known.topic, known.topic_id, known.partition, known.leader, tiered.highest_offset_in_remote_storage, tiered.copied_at,
       logs.last_stable_offset, logs.log_end_offset,
       CASE WHEN logs.last_stable_offset IS NOT NULL
         THEN greatest(logs.last_stable_offset - greatest(coalesce(tiered.highest_offset_in_remote_storage + 1, 0), logs.log_start_offset), 0)
       END AS lag,
       logs.noted_at
FROM partitions AS known
LEFT JOIN partition_offsets AS logs
ON logs.topic_id = known.topic_id AND logs.partition = known.partition
LEFT JOIN (
  SELECT topic_id, partition, max(end_offset) AS highest_offset_in_remote_storage, max(event_time) AS copied_at
  FROM ${remote_log_metadata} WHERE state = 'COPY_SEGMENT_FINISHED' GROUP BY topic_id, partition
) AS tiered
ON tiered.topic_id = known.topic_id AND tiered.partition = known.partition
WHERE known.topic NOT IN ('__consumer_offsets', '__transaction_state') AND known.topic NOT IN (
  SELECT topic FROM topic_configs
  WHERE (name = 'remote.storage.enable' AND value = 'false') OR (name = 'cleanup.policy' AND value LIKE '%compact%')
)
