-- What was written of tiered ranges? Every event, as it is in the table.
SELECT * FROM ${remote_log_metadata}
