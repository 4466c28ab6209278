"""Listeners: their addresses, the accepting of connections, and connection limits (KIP-612)."""
