"""A lowered plan on one process or several: started, joined, stepped, kept.

`local_processes` starts processes on this machine, `members` joins what a cluster set, `steps` runs
a plan step by step, its results fed back, `checkpoint` keeps what it is fed, told apart by
`array_digest`.
"""
