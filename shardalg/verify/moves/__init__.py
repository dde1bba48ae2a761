"""What each kind of instruction that moves something is claimed to do, from its definition."""
