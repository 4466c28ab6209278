"""Settings of a node: what the file says, what changes while it runs, and what has no effect."""
