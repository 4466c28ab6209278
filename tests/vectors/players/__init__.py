"""One player per vector family: `play(scenario)` runs the steps and yields `(step index, expected, got)`."""
