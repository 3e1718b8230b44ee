"""Pure: what is known of a version's files (`entry.py`), in columns, found by partition, offset and timestamp."""
