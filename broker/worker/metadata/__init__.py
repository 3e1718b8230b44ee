"""Pure: the system tables: remote log metadata (its manager), the cluster's events, and published offsets."""
