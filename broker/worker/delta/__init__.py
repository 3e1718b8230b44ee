"""Pure: the RemoteStorageManager: a topic's records as a Delta table, and its rows as record batches again."""
