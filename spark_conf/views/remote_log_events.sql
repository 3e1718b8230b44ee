-- Every event in the life of every tiered range, as it was written.
SELECT * FROM delta.`${lake}/__remote_log_metadata`
