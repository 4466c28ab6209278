"""Connections: how many and how fast they come, how they are muted, and how long they wait."""
