-- How far is a group behind, and how much of that is already in the lake? As of the latest checkpoint.
SELECT committed.group_id, committed.topic, committed.partition, committed.committed_offset, logs.high_watermark,
       CASE WHEN logs.high_watermark IS NOT NULL
         THEN greatest(logs.high_watermark - committed.committed_offset, 0)
       END AS lag,
       greatest(
         coalesce(tiered.highest_offset_in_remote_storage + 1, 0)
           - greatest(committed.committed_offset, coalesce(logs.log_start_offset, 0), coalesce(tiered.tiered_start, 0)),
         0
       ) AS lag_in_lake,
       committed.commit_time, committed.metadata,
       CASE WHEN logs.noted_at IS NOT NULL THEN least(committed.noted_at, logs.noted_at) END AS noted_at
FROM committed_offsets AS committed
JOIN partitions AS known ON known.topic = committed.topic AND known.partition = committed.partition
LEFT JOIN partition_offsets AS logs
ON logs.topic_id = known.topic_id AND logs.partition = known.partition
LEFT JOIN (
  SELECT topic_id, partition, min(start_offset) AS tiered_start, max(end_offset) AS highest_offset_in_remote_storage
  FROM remote_segments WHERE state = 'COPY_SEGMENT_FINISHED' GROUP BY topic_id, partition
) AS tiered
ON tiered.topic_id = known.topic_id AND tiered.partition = known.partition
