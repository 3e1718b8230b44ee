-- Which leader wrote an offset? Every leader epoch with its leader, its start, and its offsets in the lake.
SELECT changes.topic, changes.topic_id, changes.partition, changes.leader_epoch, changes.leader, changes.since,
       coalesce(
         lead(changes.since) OVER (PARTITION BY changes.topic_id, changes.partition ORDER BY changes.leader_epoch),
         deleted.deleted_at
       ) AS until,
       tiered.start_offset, tiered.end_offset
FROM (
  SELECT topic, topic_id, partition, leader_epoch, max_by(leader, version) AS leader, min(event_time) AS since
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'PartitionChanged'
  GROUP BY topic, topic_id, partition, leader_epoch
) AS changes
LEFT JOIN (
  SELECT topic_id, max(event_time) AS deleted_at
  FROM ${cluster_metadata} WHERE kind = 'event' AND type = 'TopicDeleted' GROUP BY topic_id
) AS deleted ON deleted.topic_id = changes.topic_id
LEFT JOIN (
  SELECT topic_id, partition, entry.epoch AS epoch, min(entry.start_offset) AS start_offset,
         least(
           lead(min(entry.start_offset)) OVER (PARTITION BY topic_id, partition ORDER BY entry.epoch) - 1,
           max(end_offset)
         ) AS end_offset
  FROM (
    SELECT topic_id, partition, end_offset, ${explode}(leader_epochs) AS entry
    FROM remote_segments WHERE state = 'COPY_SEGMENT_FINISHED'
  ) AS entries
  GROUP BY topic_id, partition, entry.epoch
) AS tiered
ON tiered.topic_id = changes.topic_id AND tiered.partition = changes.partition AND tiered.epoch = changes.leader_epoch
