"""Pure: cold reads wait their turn here, and what was made for them is kept, in memory and on the local disk."""
