"""What the jobs found, as tables for the terminal."""
