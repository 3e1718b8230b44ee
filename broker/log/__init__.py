"""Pure: the log of a partition in Kafka's own files; `log.py` is one, `directories/manager.py` all of a node."""
