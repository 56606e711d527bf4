"""The flow solver against enumeration, with and without its reductions."""

from __future__ import annotations

import itertools
import random

import pytest

from fp16conv.planning import flow

Arcs = list[tuple[int, int, int]]


def enumerate_cut(source: list[int], sink: list[int], arcs: Arcs) -> list[bool]:
    n = len(source)
    best: tuple[int, int, list[bool]] | None = None
    for side in itertools.product((False, True), repeat=n):
        cost = sum(source[v] for v in range(n) if not side[v])
        cost += sum(sink[v] for v in range(n) if side[v])
        cost += sum(c for u, v, c in arcs if side[u] and not side[v])
        if best is None or (cost, sum(side)) < best[:2]:
            best = (cost, sum(side), list(side))
    assert best is not None
    return best[2]


def random_network(seed: int) -> tuple[list[int], list[int], Arcs]:
    rng = random.Random(seed)
    n = rng.randint(1, 7)
    terminals = [[rng.choice([0, 0, 1, 3, 9]) for _ in range(n)] for _ in range(2)]
    arcs = [
        (rng.randrange(n), rng.randrange(n), rng.choice([1, 2, 5, 100])) for _ in range(rng.randint(0, 14))
    ]
    return terminals[0], terminals[1], arcs


@pytest.mark.parametrize("seed", range(200))
def test_smallest_minimum_cut(seed: int) -> None:
    source, sink, arcs = random_network(seed)
    assert flow.minimum_cut(source, sink, arcs) == enumerate_cut(source, sink, arcs)


@pytest.fixture(params=[0, 10**9], ids=["networkx", "augmenting paths"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions decide nearly all small networks: switch them off to test what lies behind."""
    monkeypatch.setattr(flow._Network, "_reduce", lambda self: None)
    monkeypatch.setattr(flow, "_SMALL", request.param)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("seed", range(60))
def test_what_lies_behind_the_reductions(seed: int) -> None:
    source, sink, arcs = random_network(seed)
    assert flow.minimum_cut(source, sink, arcs) == enumerate_cut(source, sink, arcs)


@pytest.mark.parametrize("seed", range(5))
def test_both_parts_agree_where_paths_are_long(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    n = 120
    source, sink = ([rng.choice([0, 0, rng.randint(1, 10**6)]) for _ in range(n)] for _ in range(2))
    arcs = [(v, w, rng.randint(1, 10**6)) for v in range(n - 1) for w in (v + 1, rng.randrange(n))]
    arcs += [(v + 1, v, rng.randint(1, 10**6)) for v in range(n - 1)]
    reduced = flow.minimum_cut(source, sink, arcs)
    monkeypatch.setattr(flow._Network, "_reduce", lambda self: None)
    sides = []
    for small in (0, 10**9):
        monkeypatch.setattr(flow, "_SMALL", small)
        sides.append(flow.minimum_cut(source, sink, arcs))
    assert sides == [reduced, reduced]
    assert 0 < sum(reduced) < n


def test_order_of_arcs_does_not_matter() -> None:
    for seed in range(30):
        source, sink, arcs = random_network(seed)
        shuffled = list(arcs)
        random.Random(seed).shuffle(shuffled)
        assert flow.minimum_cut(source, sink, arcs) == flow.minimum_cut(source, sink, shuffled)


def test_tie_goes_to_the_sink() -> None:
    assert flow.minimum_cut([4, 0], [0, 4], [(0, 1, 4), (1, 0, 4)]) == [False, False]
    assert flow.minimum_cut([], [], []) == []
