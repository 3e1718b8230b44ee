-- Who leads and who is in sync now? The state of each partition of each topic that is there.
SELECT topic, topic_id, partition, leader, leader_epoch, partition_epoch, replicas, isr, elr,
       array_size(isr) < array_size(replicas) AS under_replicated, event_time AS since, version
FROM (
  SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY version DESC, sequence DESC) AS newest
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'PartitionChanged'
) AS changes
WHERE newest = 1 AND topic_id NOT IN (
  SELECT topic_id FROM ${cluster_metadata} WHERE kind = 'event' AND type = 'TopicDeleted'
)
