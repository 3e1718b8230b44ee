"""Pure: Delta tables of any content: actions, the log and its next version, snapshots, checkpoints, maintenance, store.

It knows nothing of Kafka. Begin with `log.py`.
"""
