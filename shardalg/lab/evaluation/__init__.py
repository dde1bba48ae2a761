"""What the paper measured, and what our models predict of it."""
