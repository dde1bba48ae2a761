"""Claims as z3 formulas: for all sizes, for all devices, or device by device."""
