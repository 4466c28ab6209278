"""Readers of files and settings: broker properties, `quotas.yaml`, numbers as Java reads them."""
