"""Where clients connect: addresses, accepting, and which connections may stay (KIP-612)."""
