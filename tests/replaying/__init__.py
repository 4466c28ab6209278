"""What the tests of the replay share: a node that records, the kernel fed with its events, random logs."""
