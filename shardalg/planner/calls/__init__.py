"""A call as its user writes it, made one of a function of arrays: what `plan` takes, what runs.

`opened` takes it apart from the outside in: a wrapper of a framework (`nnx.jit`, `eqx.filter_jit`),
a function that `jax.jit` has jitted, keyword arguments, static arguments. What comes of it is a
`Call`: a function of pytrees of arrays, and the way from the user's own objects to it and back.
That way is the framework's own: nnx splits its modules, and updates them with what comes out;
equinox keeps apart what is no array. A framework is imported only where one of its objects comes.
"""
