"""Who used what: sums, peaks and percentiles, by any columns of names of the usage record."""
