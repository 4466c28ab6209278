"""A custom quota callback (KIP-257) on a running node: loaded, guarded and exchanged."""
