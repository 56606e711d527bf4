"""Exact minimum s-t cut with integer capacities, fast on the sparse graphs that plans give.

Reductions that provably keep the answer come first (they decide nearly everything in linear time);
what is left is solved component by component: small ones by augmenting paths, large ones by networkx's
Boykov-Kolmogorov.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

__all__ = ["minimum_cut"]

_Room = dict[int, dict[int, int]]  # capacity left from vertex to vertex

_SOURCE, _SINK = -1, -2
_SMALL = (
    400  # vertices (real models leave 3 to 80); larger, networkx is faster though it must be loaded first
)
_MERGE_DEGREE = 8  # merging looks only at vertices with few arcs: keeps the whole linear


def minimum_cut(
    to_source: Sequence[int], to_sink: Sequence[int], arcs: Iterable[tuple[int, int, int]]
) -> list[bool]:
    """Return the smallest source side among all minimum cuts.

    That set is unique (minimum cuts form a lattice), so the answer does not depend on the order of
    arcs or on the algorithm, and it only shrinks when `to_sink` grows.

    Args:
        to_source: capacity of the arc source -> v per vertex, >= 0.
        to_sink: capacity of the arc v -> sink per vertex, >= 0.
        arcs: (u, v, capacity) between vertices; cut when u is on the source side and v is not.

    Returns:
        Per vertex, whether it is on the source side.

    Example:
        >>> minimum_cut([5, 0, 0], [0, 0, 1], [(0, 1, 9), (1, 0, 9), (1, 2, 3), (2, 1, 3)])
        [True, True, True]
    """
    return _Network(to_source, to_sink, arcs).solve()


class _Network:
    """A mutable flow network over vertices 0..n-1 that shrinks while vertices are decided."""

    def __init__(
        self, to_source: Sequence[int], to_sink: Sequence[int], arcs: Iterable[tuple[int, int, int]]
    ) -> None:
        size = len(to_source)
        self.source, self.sink = list(to_source), list(to_sink)
        self.out: list[dict[int, int]] = [{} for _ in range(size)]
        self.into: list[dict[int, int]] = [{} for _ in range(size)]
        self.sum_out, self.sum_into = [0] * size, [0] * size
        self.parent = list(range(size))
        self.side: list[bool | None] = [None] * size
        for u, v, capacity in arcs:
            self._add(u, v, capacity)

    def solve(self) -> list[bool]:
        self._reduce()
        self._solve_rest()
        return [bool(self.side[self._find(v)]) for v in range(len(self.parent))]

    def _find(self, v: int) -> int:
        while self.parent[v] != v:
            self.parent[v] = self.parent[self.parent[v]]
            v = self.parent[v]
        return v

    def _add(self, u: int, v: int, capacity: int) -> None:
        if capacity and u != v:
            self.out[u][v] = self.out[u].get(v, 0) + capacity
            self.into[v][u] = self.into[v].get(u, 0) + capacity
            self.sum_out[u] += capacity
            self.sum_into[v] += capacity

    def _detach(self, v: int) -> tuple[dict[int, int], dict[int, int]]:
        """Remove all arcs of a vertex and return them."""
        out, into = self.out[v], self.into[v]
        for w, capacity in out.items():
            del self.into[w][v]
            self.sum_into[w] -= capacity
        for w, capacity in into.items():
            del self.out[w][v]
            self.sum_out[w] -= capacity
        self.out[v], self.into[v] = {}, {}
        self.sum_out[v] = self.sum_into[v] = 0
        return out, into

    def _reduce(self) -> None:
        """Decide or merge vertices while a local argument suffices.

        Let S be the smallest source side. A vertex is in S when keeping it out costs strictly more
        than everything that taking it in could cost, and out of S when leaving costs at most what it
        saves. By the same two arguments relative to a neighbour u, v ends on u's side.
        """
        queue, queued = deque(range(len(self.parent))), [True] * len(self.parent)

        def push(vertices: Iterable[int]) -> None:
            for w in vertices:
                if not queued[w]:
                    queued[w] = True
                    queue.append(w)

        while queue:
            v = queue.popleft()
            queued[v] = False
            if self.parent[v] != v or self.side[v] is not None:
                continue
            through = min(self.source[v], self.sink[v])  # flow that every cut pays
            self.source[v] -= through
            self.sink[v] -= through
            if self.source[v] > self.sum_out[v]:
                self.side[v] = True
                out, into = self._detach(v)
                for w, capacity in out.items():
                    self.source[w] += capacity
                push(out)
                push(into)
            elif self.sink[v] >= self.sum_into[v] + self.source[v]:
                self.side[v] = False
                out, into = self._detach(v)
                for w, capacity in into.items():
                    self.sink[w] += capacity
                push(out)
                push(into)
            elif len(self.out[v]) + len(self.into[v]) <= _MERGE_DEGREE:
                u = self._twin(v)
                if u is not None:
                    out, into = self._detach(v)
                    self.parent[v] = u
                    self.source[u] += self.source[v]
                    self.sink[u] += self.sink[v]
                    for w, capacity in out.items():
                        self._add(u, w, capacity)
                    for w, capacity in into.items():
                        self._add(w, u, capacity)
                    push((u,))
                    push(out)
                    push(into)

    def _twin(self, v: int) -> int | None:
        """A neighbour on whose side v surely ends."""
        for u, pull in self.into[v].items():
            back = self.out[v].get(u, 0)
            joins = pull > self.sum_out[v] - back + self.sink[v]
            leaves = back >= self.sum_into[v] - pull + self.source[v]
            if joins and leaves:
                return u
        return None

    def _solve_rest(self) -> None:
        rest = [v for v in range(len(self.parent)) if self.parent[v] == v and self.side[v] is None]
        seen: set[int] = set()
        for start in rest:
            if start in seen:
                continue
            component, stack = [], [start]
            seen.add(start)
            while stack:
                v = stack.pop()
                component.append(v)
                for w in (*self.out[v], *self.into[v]):
                    if w not in seen:
                        seen.add(w)
                        stack.append(w)
            inside = self._solve_component(component)
            for v in component:
                self.side[v] = v in inside

    def _solve_component(self, component: list[int]) -> set[int]:
        room: _Room = {v: dict(self.out[v]) for v in component}
        for v in component:
            if self.sink[v]:
                room[v][_SINK] = self.sink[v]
        room[_SOURCE] = {v: self.source[v] for v in component if self.source[v]}
        room[_SINK] = {}
        if len(component) > _SMALL:
            room = _saturate_large(room)
        else:
            _saturate(room)
        return set(_reach(room))  # what the source still reaches is the smallest source side


def _saturate(room: _Room) -> None:
    """Push flow along shortest paths while there is one (Edmonds and Karp, 1972).

    Args:
        room: capacity by vertex and next vertex; becomes what is left of it, against the flow too.
    """
    while _SINK in (came := _reach(room)):
        path, v = [], _SINK
        while v != _SOURCE:
            path.append((came[v], v))
            v = came[v]
        flow = min(room[u][v] for u, v in path)
        for u, v in path:
            room[u][v] -= flow
            room[v][u] = room[v].get(u, 0) + flow


def _saturate_large(room: _Room) -> _Room:
    """The same by networkx: linear in practice, but loading it takes longer than planning most models."""
    import networkx as nx
    from networkx.algorithms.flow import boykov_kolmogorov

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((_SOURCE, _SINK))
    graph.add_edges_from((u, v, {"capacity": room[u][v]}) for u in room for v in room[u])
    residual = boykov_kolmogorov(graph, _SOURCE, _SINK)
    return {u: {v: arc["capacity"] - arc["flow"] for v, arc in residual[u].items()} for u in residual}


def _reach(room: _Room) -> dict[int, int]:
    """What the source reaches where there is room, breadth first, each with where it was reached from."""
    came: dict[int, int] = {_SOURCE: _SOURCE}
    queue: deque[int] = deque(came)
    while queue:
        u = queue.popleft()
        for v, left in room[u].items():
            if left and v not in came:
                came[v] = u
                queue.append(v)
    return came
