"""Pure: a topic's Parquet files: written, read by offset, with and without Arrow, and rewritten when due."""
