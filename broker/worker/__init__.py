"""Shell: the tier's worker, a process of its own: cold reads, copies, expiry, optimising, the system tables.

Everything heavy is loaded here (pyarrow, numba, deltalake) and never in the broker's process, which imports of this
package only `rpc`.
"""
