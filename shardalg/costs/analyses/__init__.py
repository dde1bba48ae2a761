"""What else a program's prices tell: work done twice along idle axes, and how bytes scale."""
