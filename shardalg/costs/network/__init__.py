"""Links between devices, and the seconds of collectives over them.

`interconnect.py` describes the links between chips of one kind. `placement.py` places mesh axes
on these links: a span is a part of an axis on links of one kind. `collective_seconds.py` prices
collectives over spans, and `permute_seconds.py` permutes by the positions that send and receive.
"""
