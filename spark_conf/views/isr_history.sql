-- Who led a partition, and who was in sync, at a given time? Every state of every partition, from `since` to `until`.
SELECT changes.topic, changes.topic_id, changes.partition, changes.since,
       coalesce(changes.until, deleted.deleted_at) AS until, changes.leader, changes.leader_epoch,
       changes.partition_epoch, changes.replicas, changes.isr, changes.elr,
       array_except(changes.isr, changes.previous_isr) AS joined,
       array_except(changes.previous_isr, changes.isr) AS departed, changes.version, changes.sequence
FROM (
  SELECT *, event_time AS since,
         lead(event_time) OVER (PARTITION BY topic_id, partition ORDER BY version, sequence) AS until,
         coalesce(lag(isr) OVER (PARTITION BY topic_id, partition ORDER BY version, sequence), isr) AS previous_isr
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'PartitionChanged'
) AS changes
LEFT JOIN (
  SELECT topic_id, max(event_time) AS deleted_at
  FROM ${cluster_metadata} WHERE kind = 'event' AND type = 'TopicDeleted' GROUP BY topic_id
) AS deleted ON deleted.topic_id = changes.topic_id
