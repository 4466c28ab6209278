"""Measuring: sampled rates, token buckets, other statistics, and the sensors that keep them."""
