"""Seconds of real steps: the data sheet's seconds by cause, times a few fitted constants.

`constants.py` defines the constants of a chip under a software stack ("xla", "pytorch"): the share
of its peak that products reach, the weight of memory traffic, the rate of attention kernels, and
the shares of communication that nothing hides. `by_cause.py` splits a program's seconds by cause.
`fit.py` finds constants by least squares from measured steps, and predicts each step from the
others. The values are in the chips' files, with the runs that they were fitted on.

Constants belong to chips, not to models. Several chips may share a constant; a chip has at most one
constant of its own per four measured runs (`benchmarks/calibration.py`).
"""
