"""Ways to train a model on so many devices, planned, priced and ranked."""
