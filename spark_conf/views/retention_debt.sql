-- Which ranges are past their retention and not deleted yet? With the rule that expired them. Normally empty.
SELECT topic, topic_id, partition, segment_id, reason, state, start_offset, end_offset, size_bytes, lake_bytes
FROM (
  SELECT *, CASE
      WHEN state = 'DELETE_SEGMENT_STARTED' THEN 'deletion not finished'
      WHEN end_offset < log_start_offset THEN 'below log start'
      WHEN retention_ms >= 0 AND unix_millis(current_timestamp) - newest_ms >= retention_ms THEN 'retention.ms'
      WHEN retention_bytes >= 0 AND newer_bytes >= retention_bytes THEN 'retention.bytes'
    END AS reason
  FROM (
    SELECT segments.*, logs.log_start_offset,
           CASE
             WHEN segments.max_timestamp_ms >= 0 THEN segments.max_timestamp_ms
             ELSE unix_millis(segments.event_time)
           END AS newest_ms,
           CAST(coalesce(by_time.value, own.retention_ms, common.retention_ms, '${retention_ms}') AS BIGINT)
             AS retention_ms,
           CAST(coalesce(by_size.value, own.retention_bytes, common.retention_bytes, '-1') AS BIGINT)
             AS retention_bytes,
           coalesce(sum(segments.size_bytes) OVER (
             PARTITION BY segments.topic_id, segments.partition ORDER BY segments.end_offset DESC
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ), 0) AS newer_bytes
    FROM remote_segments AS segments
    JOIN partitions AS known ON known.topic_id = segments.topic_id AND known.partition = segments.partition
    CROSS JOIN (
      SELECT max(CASE WHEN name = 'log.retention.ms' THEN value END) AS retention_ms,
             max(CASE WHEN name = 'log.retention.bytes' THEN value END) AS retention_bytes
      FROM broker_configs WHERE broker_id IS NULL
    ) AS common
    LEFT JOIN (
      SELECT broker_id, max(CASE WHEN name = 'log.retention.ms' THEN value END) AS retention_ms,
             max(CASE WHEN name = 'log.retention.bytes' THEN value END) AS retention_bytes
      FROM broker_configs GROUP BY broker_id
    ) AS own ON own.broker_id = known.leader
    LEFT JOIN partition_offsets AS logs
    ON logs.topic_id = segments.topic_id AND logs.partition = segments.partition
    LEFT JOIN topic_configs AS by_time ON by_time.topic = segments.topic AND by_time.name = 'retention.ms'
    LEFT JOIN topic_configs AS by_size ON by_size.topic = segments.topic AND by_size.name = 'retention.bytes'
    WHERE segments.state IN ('COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')
  ) AS kept
) AS judged
WHERE reason IS NOT NULL
