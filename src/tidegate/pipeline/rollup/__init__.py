"""Usage sums, peaks and percentiles, grouped by any name columns of the usage record."""
