"""Pure: the log of a partition in Kafka's own files; `log.py` is one, `directories/log_manager.py` all of a node."""
