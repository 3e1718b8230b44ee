-- What is in the lake that retention has done with? Ranges that are due, and why; nothing is due for long.
SELECT topic, topic_id, partition, segment_id, reason, state, start_offset, end_offset, size_bytes, lake_bytes
FROM (
  SELECT *, CASE
      WHEN state = 'DELETE_SEGMENT_STARTED' THEN 'deletion not finished'
      WHEN end_offset < log_start_offset THEN 'below log start'
      WHEN retention_ms >= 0 AND max_timestamp_ms >= 0
        AND unix_millis(current_timestamp) - max_timestamp_ms > retention_ms THEN 'retention.ms'
      WHEN retention_bytes >= 0 AND newer_bytes >= retention_bytes THEN 'retention.bytes'
    END AS reason
  FROM (
    SELECT segments.*, unix_millis(segments.max_timestamp) AS max_timestamp_ms,
           coalesce(CAST(by_time.value AS BIGINT), ${retention_ms}) AS retention_ms,
           coalesce(CAST(by_size.value AS BIGINT), -1) AS retention_bytes,
           logs.log_start_offset,
           coalesce(sum(segments.size_bytes) OVER (
             PARTITION BY segments.topic_id, segments.partition ORDER BY segments.end_offset DESC
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ), 0) AS newer_bytes
    FROM remote_segments AS segments
    JOIN partitions AS known ON known.topic_id = segments.topic_id AND known.partition = segments.partition
    LEFT JOIN partition_offsets AS logs
    ON logs.topic_id = segments.topic_id AND logs.partition = segments.partition
    LEFT JOIN topic_configs AS by_time ON by_time.topic = segments.topic AND by_time.name = 'retention.ms'
    LEFT JOIN topic_configs AS by_size ON by_size.topic = segments.topic AND by_size.name = 'retention.bytes'
    WHERE segments.state IN ('COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED')
  ) AS kept
) AS judged
WHERE reason IS NOT NULL
