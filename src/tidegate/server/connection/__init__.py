"""Connections: their bytes, the requests in them, and the times at which they are read."""
