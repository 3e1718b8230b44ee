"""Shell: opening a log's folder: interrupted work is finished, old formats are converted, the rest is checked."""
