"""Shell: tiered storage (KIP-405), the broker's half: it decides what is copied, deleted and read. The worker does
it.
"""
