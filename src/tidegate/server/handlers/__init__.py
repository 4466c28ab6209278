"""The APIs that the front itself answers: what it serves, and quota administration."""
