"""Tables, figures and pages about plans, programs, proofs and measurements."""
