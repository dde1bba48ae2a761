"""Ways to train a model on a number of devices: planned, priced and ranked."""
