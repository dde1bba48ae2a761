"""The claims of local operators: what they read, write and combine, against their rows."""
