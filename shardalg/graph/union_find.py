"""A partition of numbers into classes that are merged one pair at a time (union-find)."""

from __future__ import annotations


class UnionFind:
    """Classes of the numbers 0 to `size - 1`; at first, each number is a class of its own.

    The representative of a class is its smallest number.

    >>> classes = UnionFind(5)
    >>> classes.join(4, 1)
    >>> classes.join(1, 3)
    >>> classes.root(4), classes.root(2), classes.roots()
    (1, 2, (0, 1, 2, 1, 1))
    """

    def __init__(self, size: int) -> None:
        # Each number refers to another one of its class, and a representative to itself. A merge of
        # two classes therefore changes a single entry.
        self.parent = list(range(size))

    def root(self, item: int) -> int:
        """Return the smallest of the numbers that are joined with `item`, or `item` itself."""
        parent = self.parent
        # Each visit halves the path to the representative, so that later visits are short.
        while parent[item] != item:
            parent[item] = item = parent[parent[item]]
        return item

    def join(self, first: int, second: int) -> None:
        """Merge the classes of two numbers: `root` of all their members is then the same."""
        a, b = self.root(first), self.root(second)
        if a < b:
            self.parent[b] = a
        else:
            self.parent[a] = b

    def roots(self) -> tuple[int, ...]:
        """Return, for each number from 0 on, the representative of its class."""
        return tuple(map(self.root, range(len(self.parent))))
