"""The Plan: the face of everything else; and reshards asked for one tensor at a time."""
