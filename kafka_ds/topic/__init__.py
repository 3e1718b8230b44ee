"""Pure: Kafka's Delta tables: a topic's (`table.py`), and the system tables of events and offsets.

`names.py` and `schemas.py` are a contract with everything that reads Delta; `commit_rules.py` decides who may write
what; `batches` converts batches to rows and back, `files` are their Parquet files.
"""
