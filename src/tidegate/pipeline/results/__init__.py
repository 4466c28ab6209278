"""Results on disk, and their rows."""
