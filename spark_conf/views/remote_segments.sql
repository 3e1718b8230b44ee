-- What is in the lake now? The current state of every range: its newest event, by version and sequence.
SELECT topic, topic_id, partition, segment_id, state, start_offset, end_offset, leader_epochs,
       CASE WHEN max_timestamp BETWEEN 0 AND ${milliseconds_max} THEN timestamp_millis(max_timestamp) END
         AS max_timestamp,
       max_timestamp AS max_timestamp_ms, size_bytes, lake_bytes, row_count, broker_id, leader_epoch,
       files, residue, event_time, version, sequence
FROM (
  SELECT *, row_number() OVER (PARTITION BY segment_id ORDER BY version DESC, sequence DESC) AS newest
  FROM ${remote_log_metadata}
) AS events
WHERE newest = 1
