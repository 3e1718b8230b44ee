"""Pure: registers the tables of topics in a Hive metastore or in Unity Catalog, and drops those of deleted topics.

It writes and deletes no data, and changes only tables that it has registered itself. Begin with `registrar.py`.
"""
