"""Shell: the log directories of a broker, and all logs in them: loaded, kept in checkpoints, moved, deleted.

Rules of this file: `manager` is the whole; nothing in `broker.log` outside this folder knows it.
"""
