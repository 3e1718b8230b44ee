-- Who leads and who is in sync now? The current state of each partition.
SELECT topic, topic_id, partition, leader, leader_epoch, partition_epoch, replicas, isr, elr,
       array_size(isr) < array_size(replicas) AS under_replicated, event_time AS since, version
FROM (
  -- One scan for changes and deletions: Spark asks a table's log again for each that a plan has.
  SELECT *, row_number() OVER (PARTITION BY topic_id, partition ORDER BY version DESC, sequence DESC) AS newest,
         max(CASE WHEN type = 'TopicDeleted' THEN version END) OVER (PARTITION BY topic_id) AS deleted
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type IN ('PartitionChanged', 'TopicDeleted')
) AS changes
WHERE newest = 1 AND type = 'PartitionChanged' AND deleted IS NULL
