"""Links between devices, and the seconds of collectives over them.

`interconnect.py` describes the links between chips of one kind. `placement.py` places mesh axes
on these links: a span is a part of an axis on links of one kind. `collective_seconds.py` computes
the seconds of a collective from the spans that it uses. `permute_seconds.py` computes those of
a permute from the positions of the devices that send and receive.
"""
