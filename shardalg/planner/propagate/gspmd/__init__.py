"""GSPMD's completion: sweeps, levels, and the step at one operator."""
