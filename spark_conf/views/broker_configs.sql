-- Which settings were changed on running brokers? `broker_id` null means all brokers; a broker's own value wins.
SELECT TRY_CAST(nullif(resource_name, '') AS INT) AS broker_id, name, value, event_time AS since
FROM (
  SELECT get_json_object(payload, '$$.resource_name') AS resource_name, get_json_object(payload, '$$.name') AS name,
         get_json_object(payload, '$$.value') AS value, event_time,
         row_number() OVER (
           PARTITION BY get_json_object(payload, '$$.resource_name'), get_json_object(payload, '$$.name')
           ORDER BY version DESC, sequence DESC
         ) AS newest
  FROM ${cluster_metadata}
  WHERE kind = 'event' AND type = 'ConfigChanged'
    AND CAST(get_json_object(payload, '$$.resource_type') AS INT) = 4
) AS changes
WHERE newest = 1 AND value IS NOT NULL
