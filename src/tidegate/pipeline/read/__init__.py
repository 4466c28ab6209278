"""From usage files to numbers: the files themselves, chunks of rows, rows packed for the shuffle, and timelines."""
