"""Mixed load for as long as one likes, with restarts: does anything grow, is anything lost? `make soak MINUTES=60`."""
