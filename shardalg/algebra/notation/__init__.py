"""Shardings as text: HLO's three versions, Shardy's, PartitionSpecs and our own.

Notations: `algebra/notation/read.py` tells which notation a text is: HLO versions 1 and 2
(`hlo.py`: tile arrays, lists and iotas of device ids), version 3 (`axis_lists.py`) and Shardy
(`axis_lists.py`), which share lists of axes (`axis_lists.py`), PartitionSpecs
(`jax_specs.py`, `axis_names.py`) and our own
text. All read through one `Reader` (errors with the column, work bounded by the length of the
text). Text that brings its own mesh or device order is read on that mesh, and `algebra/layout.py`
states the layout in positions of the user's mesh, by tables where device orders differ; merges
across device orders use it too. A maximal sharding is the mesh of that one device, without axes, as
in Shardy: every comparison with another mesh then refuses it by its devices.
"""
