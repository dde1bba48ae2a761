"""Compatible, merge, equal and refines: decided by integers; proofs and lemmas in rooms beside."""
