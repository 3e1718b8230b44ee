-- Which brokers are registered, where, are they alive, and what do they lead?
SELECT registered.broker_id, registered.broker_epoch,
       get_json_object(registered.payload, '$$.endpoints[0].host') AS host,
       CAST(get_json_object(registered.payload, '$$.endpoints[0].port') AS INT) AS port,
       get_json_object(registered.payload, '$$.rack') AS rack,
       changed.type = 'FenceBroker'
         OR (changed.type <> 'UnfenceBroker' AND get_json_object(changed.payload, '$$.fenced') = 'true') AS fenced,
       registered.broker_id = (
         SELECT max_by(broker_id, version) FROM ${cluster_metadata}
         WHERE kind = 'event' AND type = 'ControllerChange'
       ) AS is_controller,
       coalesce(led.partitions_led, 0) AS partitions_led,
       registered.event_time AS registered_at, changed.event_time AS since
FROM (
  SELECT *, row_number() OVER (PARTITION BY broker_id ORDER BY version DESC, sequence DESC) AS newest
  FROM ${cluster_metadata} WHERE kind = 'event' AND type = 'RegisterBroker'
) AS registered
JOIN (
  SELECT *, row_number() OVER (PARTITION BY broker_id ORDER BY version DESC, sequence DESC) AS newest
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type IN (
    'RegisterBroker', 'FenceBroker', 'UnfenceBroker', 'BrokerRegistrationChanged', 'BrokerUnregistered'
  )
) AS changed ON changed.broker_id = registered.broker_id
LEFT JOIN (
  SELECT leader, count(*) AS partitions_led FROM partitions GROUP BY leader
) AS led ON led.leader = registered.broker_id
WHERE registered.newest = 1 AND changed.newest = 1 AND changed.type <> 'BrokerUnregistered'
