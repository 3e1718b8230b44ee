"""Shell: the log directories of a broker, and all logs in them: loaded, kept in checkpoints, moved, deleted.

`manager` is the entry point; nothing in `broker.log` outside this folder imports it.
"""
