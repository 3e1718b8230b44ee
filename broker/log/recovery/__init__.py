"""Shell: what a start makes of a folder: what a crash left is ended, old formats are converted, the rest is checked."""
