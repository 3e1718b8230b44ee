"""Pure: Iceberg metadata for the Parquet files of Delta tables, written by PyIceberg.

It copies no data and writes nothing to the Delta table. Begin with `table_sync.py`.
"""
