"""Programs that may abort XLA run in a process of their own."""

import multiprocessing
from contextlib import suppress
from functools import cached_property

import jax

import shardalg as sa

LIMIT = 120
"""Seconds after which there is no answer."""


class Child:
    """A process that answers one question after another, started for the first question.

    >>> child = Child()
    >>> child.ask(pow, 2, 3), child.ask(pow, 0, -1), child.ask(pow, 2, 2)
    (8, None, 4)
    >>> child.end()
    """

    @cached_property
    def _ends(self):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return ours, process

    def ask(self, fn, *arguments):
        """`fn(*arguments)`, both picklable; None where it raises, takes too long, or aborts."""
        ours, _ = self._ends
        with suppress(EOFError, OSError):
            ours.send((fn, arguments))
            if ours.poll(LIMIT):
                return ours.recv()
        self.end()
        return None

    def end(self):
        """End the process; the next question starts another one."""
        if "_ends" in self.__dict__:
            ours, process = self.__dict__.pop("_ends")
            process.terminate()
            process.join()
            ours.close()


def _answer(ours):
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs once
    sa.host_devices(8)
    with suppress(EOFError):
        while True:
            fn, arguments = ours.recv()
            try:
                answer = fn(*arguments)
            except Exception:  # there is none
                answer = None
            ours.send(answer)
