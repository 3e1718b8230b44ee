"""Pure: topics' tables in a Hive metastore or in Unity Catalog, kept in step as topics come and go.

Rules of this package: no data is written or deleted, and only what was registered from here is changed or dropped.
`registrar.py` is where to begin.
"""
