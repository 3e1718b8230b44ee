"""Pure: the Delta tables that are Kafka's: a topic's (`table.py`), and the system tables of events and offsets.

`names.py` and `schemas.py` are a contract with everything that reads Delta; `commit_rules.py`
says who may write what; `batches` are rows and back, `files` their Parquet.
"""
