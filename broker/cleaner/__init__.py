"""Shell: the cleaner process, which rewrites segments of compacted logs.

The broker's process imports only `rpc` from this package; `broker.compaction` decides which logs are due.
"""
