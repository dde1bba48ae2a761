"""Both programs run on random elements of a finite field: the referee of the audit.

Every device's values are numpy arrays. A float is a residue modulo a prime. Sums and products are
those of the field, so that partial sums, masks and reordered sums are equal exactly if they are
equal as polynomials. All other functions are hashes of their operands. Two different polynomials of
degree n agree at random elements with a probability of at most n / 2**31 (Schwartz and Zippel); the
referee runs twice.
"""
