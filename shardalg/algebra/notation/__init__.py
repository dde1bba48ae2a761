"""Shardings as text: three versions of HLO, Shardy, PartitionSpecs, and `Sharding.text`.

`read.py` recognises the notation of a text. `hlo.py` reads HLO versions 1 and 2: tile arrays, lists
and iotas of device ids. `axis_lists.py` reads lists of named axes: HLO version 3, and Shardy.
`jax_specs.py` and `axis_names.py` convert PartitionSpecs and axes per dimension. `read.py` itself
reads PartitionSpecs as text, and our own text. All of them use one `Reader`: an error names the
column, and work is bounded by the length of the text.

Text that states its own mesh or device order is read on that mesh. `algebra/layout.py` then
restates the layout on the user's mesh, by tables if device orders differ; merges across device
orders use it too. A maximal sharding has a mesh without axes that is the one device, as in Shardy.
A comparison with another mesh therefore refuses it, because the devices differ.
"""
