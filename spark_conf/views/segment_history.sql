-- What happened to a range, when, and by which broker? Every event of every range, with the state before it.
SELECT topic, topic_id, partition, segment_id, state,
       lag(state) OVER (PARTITION BY segment_id ORDER BY version, sequence) AS previous_state,
       event_time,
       lag(event_time) OVER (PARTITION BY segment_id ORDER BY version, sequence) AS previous_time,
       start_offset, end_offset, size_bytes, lake_bytes, row_count, broker_id, leader_epoch, version, sequence
FROM ${remote_log_metadata}
