"""Pure: the cache of batches made for cold reads, in memory and on the local disk."""
