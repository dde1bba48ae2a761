"""Numbers of many points at once."""
