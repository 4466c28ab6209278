"""What is read from files and settings: broker properties, `quotas.yaml`, numbers as Java reads them."""
