-- What has happened in the tier? Every event of `__remote_log_metadata`, unchanged.
SELECT * FROM ${remote_log_metadata}
