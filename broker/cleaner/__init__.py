"""Shell: the compaction worker, a process of its own: rewrites segments of compacted logs.

The broker's process imports of this package only `rpc`; `broker.compaction` decides what is due.
"""
