"""From a user's function and arguments to a function of arrays that can be traced and planned.

`opened` removes the wrappers of a call, the outermost first: those of a framework (`nnx.jit`,
`eqx.filter_jit`), `jax.jit`, keyword arguments, static arguments. The result is a `Call`: a
function of pytrees of arrays, and the conversion from the user's own objects to arrays and back.
The framework itself converts: nnx splits its modules and updates them with the results; equinox
separates all leaves that are not arrays. A framework is imported only if one of its objects occurs.
"""
