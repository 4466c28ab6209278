"""Replay recorded requests against other quotas: plans, who is replayed together, the kernel, and its results."""
