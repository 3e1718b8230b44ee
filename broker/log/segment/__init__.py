"""Shell: one segment of a log: its file of batches, its three indexes, and lookups in them."""
