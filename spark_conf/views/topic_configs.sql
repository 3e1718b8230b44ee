-- Which settings does a topic set itself? Those that it does not inherit from the brokers.
SELECT topic, name, value, event_time AS since
FROM (
  -- A name may have been a topic's before: what was set then went when that topic did.
  SELECT *, row_number() OVER (PARTITION BY topic, name ORDER BY place DESC) AS newest,
         max(CASE WHEN type = 'TopicCreated' THEN place END) OVER (PARTITION BY topic) AS created,
         max(CASE WHEN type = 'TopicDeleted' THEN place END) OVER (PARTITION BY topic) AS deleted
  FROM (
    SELECT type, version * 10000000 + sequence AS place, event_time,
           CASE WHEN type = 'ConfigChanged' THEN get_json_object(payload, '$$.resource_name') ELSE topic END AS topic,
           CASE WHEN type = 'ConfigChanged' THEN get_json_object(payload, '$$.name') END AS name,
           CASE WHEN type = 'ConfigChanged' THEN get_json_object(payload, '$$.value') END AS value
    FROM ${cluster_metadata}
    WHERE kind = 'event' AND (
      type IN ('TopicCreated', 'TopicDeleted')
      OR (type = 'ConfigChanged' AND CAST(get_json_object(payload, '$$.resource_type') AS INT) = 2)
    )
  ) AS events
) AS changes
WHERE newest = 1 AND type = 'ConfigChanged' AND value IS NOT NULL
  AND place >= created AND (deleted IS NULL OR deleted < created)
