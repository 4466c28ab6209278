"""Results of the jobs, as tables for the terminal."""
