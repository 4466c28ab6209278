"""A whole node on a virtual clock: seeded clients and faults, and an auditor with a model of its own."""
