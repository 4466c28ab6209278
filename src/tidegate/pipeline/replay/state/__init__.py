"""The state that the replay of one plan keeps from row to row: accounts, sensors and permits."""
