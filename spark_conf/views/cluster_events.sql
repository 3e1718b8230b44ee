-- What has the controller decided? Registrations, topics, partitions, settings, blocks of producer ids.
SELECT version, sequence, event_time, type, controller_epoch, broker_id, broker_epoch, topic, topic_id, partition,
       leader, leader_epoch, partition_epoch, replicas, isr, elr, payload
FROM ${cluster_metadata}
WHERE kind = 'event'
