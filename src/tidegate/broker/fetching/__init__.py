"""Fetches: what they read (`fetch`), sessions, those that wait, and those that are met by the bytes they begin with."""
