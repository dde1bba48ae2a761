"""Values with other numbers in them: tuples, records and meshes, however deep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from shardalg.algebra.mesh import Mesh


class Replaced:
    """Values with other numbers in place of those of a kind."""

    def __init__(self, kind: type, number: Callable[[Any], Any]) -> None:
        self.kind, self.number = kind, number
        self.meshes: dict[Mesh, Mesh] = {}

    def __call__(self, value: Any) -> Any:
        """The value with its numbers replaced; itself where there is none."""
        kind = type(value)
        if kind is self.kind:
            return self.number(value)
        if isinstance(value, tuple):
            return self.sequence(value)
        if kind is Mesh:
            return self.mesh(value)
        return self.record(value) if is_dataclass(kind) else value

    def sequence(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The tuple with each item replaced; itself where nothing changes."""
        made = [self(value) for value in values]
        if all(a is b for a, b in zip(made, values, strict=True)):
            return values
        return tuple(made) if type(values) is tuple else type(values)(*made)

    def mesh(self, mesh: Mesh) -> Mesh:
        """The mesh with its sizes replaced; one object per mesh."""
        if mesh not in self.meshes:
            sizes = {name: self(size) for name, size in mesh.axes}
            same = all(sizes[name] is size for name, size in mesh.axes)
            self.meshes[mesh] = mesh if same else mesh.resized(sizes)
        return self.meshes[mesh]

    def record(self, value: Any) -> Any:
        """The dataclass with each field replaced; itself where nothing changes."""
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        made = {name: self(part) for name, part in parts.items()}
        same = all(made[name] is part for name, part in parts.items())
        return value if same else type(value)(**made)
