"""Seconds of real steps: the data sheet's seconds by cause, times a few fitted constants.

`constants.py` has the constants of a chip under a software stack ("xla", "pytorch"): the share of
its peak that products reach, the weight of memory traffic, the rate of attention kernels, and the
shares of communication that nothing hides. `by_cause.py` splits a program's seconds by cause;
`fit.py` finds constants by least squares from measured steps, and how well each step is predicted
by the others. The constants themselves are in the chips' files, with the runs they were fitted on.

Constants are not properties of a model. Which chips share one is a part of the fit
(`benchmarks/calibration.py`): every chip has at most one constant of its own per four runs.
"""
