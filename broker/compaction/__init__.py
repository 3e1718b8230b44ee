"""Pure: log compaction, the broker's half: what is due, and the swap of what the cleaner's process has rewritten."""
