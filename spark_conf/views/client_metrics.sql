-- What have clients pushed (KIP-714)? One row per value, once `__client_metrics` has been copied to its table.
SELECT pushed_at, get_json_object(pushed, '$$.client_id') AS client_id,
       get_json_object(pushed, '$$.client_instance_id') AS client_instance_id,
       get_json_object(pushed, '$$.name') AS name, CAST(get_json_object(pushed, '$$.value') AS DOUBLE) AS value,
       get_json_object(pushed, '$$.attributes') AS attributes,
       CAST(get_json_object(pushed, '$$.monotonic') AS BOOLEAN) AS monotonic,
       timestamp_millis(CAST(get_json_object(pushed, '$$.timestamp') AS BIGINT)) AS measured_at,
       get_json_object(pushed, '$$.client_software_name') AS client_software_name,
       get_json_object(pushed, '$$.client_software_version') AS client_software_version,
       get_json_object(pushed, '$$.client_source_address') AS client_source_address
FROM (SELECT timestamp AS pushed_at, ${text_of}(value) AS pushed FROM ${client_metrics}) AS records
