"""What a machine does: operators alone, its rates, and a step's events on a time axis.

On CPU the devices share the machine's cores, so that a step takes what all devices work, over the
cores. The processor time of the process says how much that is, whatever else runs on the machine.
"""
