"""Proofs of claims by z3: for all sizes, for one unknown device, or device by device."""
