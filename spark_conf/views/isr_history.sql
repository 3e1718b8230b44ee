-- Who led a partition, and who was in sync, at a given time? Every state of every partition, from `since` to `until`.
SELECT topic, topic_id, partition, since, until, leader, leader_epoch, partition_epoch, replicas, isr, elr,
       array_except(isr, previous_isr) AS joined, array_except(previous_isr, isr) AS departed, version, sequence
FROM (
  SELECT *, event_time AS since,
         lead(event_time) OVER (PARTITION BY topic_id, partition ORDER BY version, sequence) AS until,
         coalesce(lag(isr) OVER (PARTITION BY topic_id, partition ORDER BY version, sequence), isr) AS previous_isr
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'PartitionChanged'
) AS changes
