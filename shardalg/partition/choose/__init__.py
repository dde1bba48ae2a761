"""What a node does where: pure functions of its row and the layouts at hand."""
