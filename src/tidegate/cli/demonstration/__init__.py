"""The parts of `tidegate demo`: a broker, its clients, the board that shows them, and the jobs afterwards."""
