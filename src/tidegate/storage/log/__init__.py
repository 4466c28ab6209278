"""The log of a partition: segments and their indexes, appends, recovery, syncs, retention and lookups by time."""
