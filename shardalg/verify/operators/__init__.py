"""The claims of local operators: their reads, writes and combinations, against their rows."""
