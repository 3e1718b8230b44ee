"""Pure: what was made for cold reads is kept here, in memory and on the local disk."""
