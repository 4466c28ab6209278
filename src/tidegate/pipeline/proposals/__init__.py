"""Proposed quotas: how much data is enough, which limits, and the notes on them."""
