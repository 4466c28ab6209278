"""The managers of the client quotas, the callback that they ask, and what it decides."""
