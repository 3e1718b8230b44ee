"""Shell: the compaction worker, a process of its own: rewrites segments of compacted logs.

The broker's process imports of this package only `rpc` and `settings`; `broker.compaction` decides what is due.
"""
