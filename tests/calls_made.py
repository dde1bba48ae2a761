"""The work of a function as a count of calls, which is equal on every machine."""

import cProfile
import pstats


def calls_made(run):
    """Run a function without arguments; return its result and the number of calls in it."""
    profile = cProfile.Profile()
    result = profile.runcall(run)
    return result, pstats.Stats(profile).total_calls
