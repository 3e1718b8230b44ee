"""Pure: macros by which DuckDB answers SQL that was written for Spark."""

# Spark functions that DuckDB has under other names.
SPARK_FUNCTIONS = (
    "CREATE OR REPLACE TEMPORARY MACRO array_size(a) AS len(a)",
    "CREATE OR REPLACE TEMPORARY MACRO array_except(a, b) AS list_filter(a, lambda x: NOT list_contains(b, x))",
    "CREATE OR REPLACE TEMPORARY MACRO get_json_object(j, p) AS json_extract_string(j, p)",
    "CREATE OR REPLACE TEMPORARY MACRO timestamp_millis(m) AS make_timestamptz(CAST(m * 1000 AS BIGINT))",
    "CREATE OR REPLACE TEMPORARY MACRO unix_millis(t) AS epoch_ms(t)",
)
# DuckDB makes JSON of bytes by escaping them, so that whatever is asked of it is null: these ask their text instead. A
# macro `json_extract` would break `->`.
JSON_OF_BYTES = tuple(
    f'CREATE OR REPLACE TEMPORARY MACRO "{name}"(v BLOB, p) AS system.main."{name}"(decode(v), p), '
    f'(v, p) AS system.main."{name}"(v, p)'
    for name in ("->>", "json_extract_string", "json_value")
)
