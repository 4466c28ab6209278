"""Changes of quotas and ACLs on the running broker, and where they are stored."""
