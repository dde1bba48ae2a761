"""Differences between programs of few and of more layers."""

import pytest

from shardalg.models.deeper import aligned


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize(
    "parts", [("p", "abcd", "h", "badc", "e"), ("p", "aab", "a", "abb", ""), ("", "ab", "", "", "")]
)
def test_of_layers_the_first_and_the_last_stay(parts, layers):
    before, forward, head, backward, after = parts

    def program(n):
        return [*before, *forward * n, *head, *backward * n, *after]

    low, high = program(layers), program(layers + 1)
    pairs = aligned(low, high)
    assert [low[i] for i, _ in pairs] == [high[j] for _, j in pairs] == low
    places = [j for _, j in pairs]
    assert places == sorted(set(places))
    assert places[: len(before) + 1] == list(range(len(before) + 1))
    assert places[-1] == len(high) - 1


def test_another_program_has_none_of_it():
    assert aligned("abcabc", "abdabdabd") is None
