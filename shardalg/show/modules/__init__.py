"""What a plan says of a function, folded by its modules."""
