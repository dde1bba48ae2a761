"""How devices are joined: what a chip's links are like, and what lies under a mesh's axes.

`interconnect.py` says how chips of one kind are joined, `placement.py` lays mesh axes onto that,
`placement.py` is a part of an axis on links of one kind, `collective_seconds.py` prices
collectives over
spans.
"""
