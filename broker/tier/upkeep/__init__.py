"""Pure: what keeps the tables in order: checkpoints, clean-up, files of lost attempts, when to lay files out anew."""
