"""Pure: Delta tables of any content: actions, the log and its next version, snapshots, checkpoints, upkeep, the store.

Rules of this package: it knows nothing of Kafka. `log.py` is where to begin.
"""
