"""What numba compiles: the decision of a row, how exact it is, and the loops over the rows, open and closed."""
