"""Shell: the tier worker's process: cold reads, copies, expiry, OPTIMIZE, the system tables.

It loads the large libraries (pyarrow, numba, deltalake), which the broker's process never does; the broker imports only
`rpc` of this package.
"""
