-- Where do the logs begin and end? As of their leaders' latest checkpoint (lake.offsets.interval.ms).
SELECT topic, topic_id, partition, leader_epoch, broker_id, log_start_offset, local_log_start_offset,
       last_stable_offset, high_watermark, log_end_offset, size_bytes, event_time AS noted_at
FROM (
  SELECT *, row_number() OVER (
    PARTITION BY topic_id, partition ORDER BY leader_epoch DESC, event_time DESC
  ) AS newest
  FROM ${offsets}
  WHERE kind = 'partition'
) AS noted
WHERE newest = 1
