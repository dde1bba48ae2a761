"""What reproduces the paper: its strategies, its Table 1, weight-update sharding."""
