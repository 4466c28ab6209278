"""The embedded broker: a handler per API over the storage, and what the handlers share."""
