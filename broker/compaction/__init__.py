"""Pure: log compaction in the broker's process: which logs are due, and the swap of cleaned segments."""
