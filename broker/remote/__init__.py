"""Shell: tiered storage (KIP-405), the broker's half: what is copied, deleted and read when; the worker does it."""
