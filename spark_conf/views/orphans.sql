-- Which ranges does nothing refer to? Ranges of deleted topics, and of copies and deletions that did not finish.
SELECT segments.topic, segments.topic_id, segments.partition, segments.segment_id, segments.state,
       CASE
         WHEN known.topic_id IS NULL THEN 'topic deleted'
         WHEN segments.state = 'COPY_SEGMENT_STARTED' THEN 'copy not finished'
         ELSE 'deletion not finished'
       END AS reason,
       segments.start_offset, segments.end_offset, segments.lake_bytes, segments.broker_id, segments.event_time
FROM remote_segments AS segments
LEFT JOIN partitions AS known ON known.topic_id = segments.topic_id AND known.partition = segments.partition
WHERE segments.state <> 'DELETE_SEGMENT_FINISHED'
  AND (known.topic_id IS NULL OR segments.state <> 'COPY_SEGMENT_FINISHED')
