"""Metrics, live quota entities and explanations over HTTP: for Prometheus, for the command line and for a browser."""
