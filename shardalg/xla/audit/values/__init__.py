"""Values of both programs: elements of tensors, known numbers, and their moves."""
