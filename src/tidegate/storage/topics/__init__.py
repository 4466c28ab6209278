"""Topics, their settings and the bound on their partitions."""
