"""One connection: its bytes, the requests in them, and when it is read."""
