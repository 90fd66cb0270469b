"""Find the chain of transformer blocks in a watched run: modules of the same shape, one after another."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from vitrail.model.anatomy.flat import Flat
from vitrail.model.anatomy.watch import Blocks, Visit

LAYERS = nn.Linear | nn.Conv2d | nn.MultiheadAttention  # the last calls no layers of its own
DEEPEST = 1.5
"""A chain with so many times fewer layers than what lies before or behind it is a lesser part of the model: what enters
it are features of another network, or what leaves it is read by one."""


def find_chains(visits: Sequence[Visit]) -> Iterator[Blocks]:
    """The rows of modules that could be a model's blocks, the likeliest first; each is still to be tried.

    Blocks keep the shape of their tokens, (1, tokens, channels) or (1, rows, columns, channels), and attend; at least
    one of them beyond windows; a single block makes a chain where it attends once and between all tokens. Those that
    all attend between all tokens come first, then the longest row, then the last one.
    """
    runs = {tuple(visit.start for visit in run): run for by_parent in (True, False) for run in _runs(visits, by_parent)}
    found = [run for run in runs.values() if _reaches(run) and _is_deep(visits, run)]
    for run in sorted(found, key=lambda run: (_is_full(run), len(run), run[0].start), reverse=True):
        yield _blocks(visits, run)


def _runs(visits: Sequence[Visit], by_parent: bool) -> list[list[Visit]]:
    """Calls of one type of module that follow each other and keep one shape; of one parent, or wherever they are."""
    runs: list[list[Visit]] = []
    last: dict[tuple[str, type], list[Visit]] = {}
    for visit in visits:
        if not _keeps_tokens(visit) or not visit.attention:
            continue
        key = (visit.name.rpartition(".")[0] if by_parent else "", type(visit.module))
        run = last.get(key)
        if run is not None and visit.start < run[-1].end:
            continue  # inside the one before
        if run is None or run[-1].args[0].shape != visit.args[0].shape:
            run = last[key] = []
            runs.append(run)
        run.append(visit)
    return [run for run in runs if len({id(visit.module) for visit in run}) == len(run)]


def _keeps_tokens(visit: Visit) -> bool:
    tokens, mixed = visit.args[0] if visit.args else None, visit.result
    if not (isinstance(tokens, Tensor) and isinstance(mixed, Tensor)) or tokens.shape != mixed.shape:
        return False
    return tokens.ndim in (3, 4) and tokens.shape[0] == 1


def _count(visit: Visit) -> int:
    """How many tokens a block has."""
    count = 1
    for side in visit.args[0].shape[1:-1]:
        count *= side
    return count


def _attends_to_all(visit: Visit) -> bool:
    """Whether every attention call of a block is one between all its tokens."""
    count = _count(visit)
    return all(len(shape) == 4 and shape[0] == 1 and shape[-2:] == (count, count) for shape in visit.attention)


def _is_full(run: Sequence[Visit]) -> bool:
    return all(len(visit.attention) == 1 and _attends_to_all(visit) for visit in run)


def _reaches(run: Sequence[Visit]) -> bool:
    """Whether some block looks beyond windows; of squares, between all tokens: channels are not to be taken for it."""
    if len(run) == 1:  # anything that holds attention would do otherwise
        return _is_full(run)
    if run[0].args[0].ndim == 4:
        return any(shape[-2:] == (_count(visit), _count(visit)) for visit in run for shape in visit.attention)
    return any(shape[0] == 1 for visit in run for shape in visit.attention)


def _is_deep(visits: Sequence[Visit], run: Sequence[Visit]) -> bool:
    """Whether the chain is more than a small part of a network of another kind."""
    layers = [visit for visit in visits if isinstance(visit.module, LAYERS)]
    before = sum(visit.start < run[0].start for visit in layers)
    behind = sum(visit.start > run[-1].end for visit in layers)
    return max(before, behind) <= DEEPEST * (len(layers) - before - behind)


def _blocks(visits: Sequence[Visit], run: Sequence[Visit]) -> Blocks:
    last = run[-1]
    entry = next(
        (
            visit.module
            for visit in visits
            if last.start < visit.start < last.end
            and isinstance(visit.result, Tensor)
            and visit.result.shape == last.args[0].shape
        ),
        last.module,
    )
    square = last.args[0].ndim == 4
    return Blocks(
        modules=tuple(Flat(visit.module) if square else visit.module for visit in run),
        tuples=tuple(isinstance(visit.output, tuple) for visit in run),
        attention=_is_full(run),
        entry=entry,
        projections=tuple(_projection(visits, block) for block in run),
    )


def _projection(visits: Sequence[Visit], block: Visit) -> nn.Linear | None:
    """The first linear layer that runs after a block's attention."""
    for visit in visits:
        if not block.start < visit.start < block.end:
            continue
        if isinstance(visit.module, nn.MultiheadAttention):
            return visit.module.out_proj
        if visit.start > block.attended and isinstance(visit.module, nn.Linear):
            return visit.module
    return None
