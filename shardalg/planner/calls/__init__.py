"""Calls of user functions as calls of functions of arrays.

`opened` unwraps a call from the outside in: a wrapper of a framework (`nnx.jit`, `eqx.filter_jit`),
a function that `jax.jit` has jitted, keyword arguments, static arguments. The result is a `Call`: a
function of pytrees of arrays, and the conversion from the user's own objects to it and back. The
framework itself converts: nnx splits its modules and updates them with the results; equinox keeps
apart all leaves that are not arrays. A framework is imported only if one of its objects occurs.
"""
