"""Replay recorded requests against other quotas: plans, partitions, the kernel, and its results."""
