-- What has the controller written? One row per metadata record: registrations, topics, partitions, settings, producer-id blocks.
SELECT version, sequence, event_time, type, controller_epoch, broker_id, broker_epoch, topic, topic_id, partition,
       leader, leader_epoch, partition_epoch, replicas, isr, elr, payload
FROM ${cluster_metadata}
WHERE kind = 'event'
