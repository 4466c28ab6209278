"""The front: it reads requests, calls handlers, charges quotas and sends answers."""
