"""Pure: the lake: Delta tables of Kafka's records, and of the brokers' own events, decisions and offsets.

Rules of this package: each folder knows only those below it.

- `tables`: what our tables are and who may write to them
- `log`: Delta's log, of any table
- `batches`: record batches as rows and back
- `files`: Parquet
- `index`: a version's files by offset
- `store`: where the bytes lie

Names, schemas and actions, which all share, are files of their own here.
"""
