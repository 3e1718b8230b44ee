"""Shell: the broker's half of tiered storage (KIP-405): it decides what is copied, deleted and read; the worker
does it.
"""
