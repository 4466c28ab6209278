"""Functions that numba compiles: the decision of a row, its certainty, and the loops over the rows, open and closed."""
