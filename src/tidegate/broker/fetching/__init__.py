"""Fetches: reading logs (`fetch`), sessions, waiting fetches, and the fast path for known requests (`known`)."""
