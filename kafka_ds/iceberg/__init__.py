"""Pure: Iceberg tables of the Parquet files of Delta tables, kept in step with them by PyIceberg.

Rules of this package: no data is copied, and nothing of Delta's is written. `mirror.py` is where to begin.
"""
