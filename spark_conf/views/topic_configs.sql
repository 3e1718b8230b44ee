-- Which settings of its own has a topic? Those that are not what the brokers' defaults say.
SELECT topic, name, value, event_time AS since
FROM (
  SELECT get_json_object(payload, '$$.resource_name') AS topic, get_json_object(payload, '$$.name') AS name,
         get_json_object(payload, '$$.value') AS value, event_time, version,
         row_number() OVER (
           PARTITION BY get_json_object(payload, '$$.resource_name'), get_json_object(payload, '$$.name')
           ORDER BY version DESC, sequence DESC
         ) AS newest
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'ConfigChanged'
    AND CAST(get_json_object(payload, '$$.resource_type') AS INT) = 2
) AS changes
JOIN (
  SELECT topic AS created_topic, max(version) AS created_version
  FROM ${cluster_metadata} WHERE kind = 'event' AND type = 'TopicCreated' GROUP BY topic
) AS created ON topic = created_topic AND version >= created_version
WHERE newest = 1 AND value IS NOT NULL
  AND topic IN (SELECT topic FROM partitions)
