"""Pure: Delta tables of any content: actions, the log and its next version, snapshots, checkpoints, upkeep, the store.

It knows nothing of Kafka. `log.py` is where to begin.
"""
