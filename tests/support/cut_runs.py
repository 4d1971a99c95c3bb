"""Cuts as Hypothesis makes them."""

from hypothesis import strategies as st

from totalorder.sequencer.wire.cuts import Cut
from totalorder.sequencer.wire.limits import MAX_PARTITION_NUMBER
from totalorder.sequencer.wire.stamps import Source


@st.composite
def runs(draw: st.DrawFn) -> list[Cut]:
    """Cuts that follow each other, now and then with other sources or another order of topics; numbers of any size."""
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=249)
    every = st.builds(Source, names, st.text("0-A", min_size=1, max_size=64), st.integers(0, MAX_PARTITION_NUMBER))
    pool = draw(st.lists(every, min_size=1, max_size=6, unique=True))
    orders = draw(st.lists(st.lists(names, max_size=3, unique=True), min_size=1, max_size=2))
    counts = st.one_of(st.integers(1, 3), st.integers(1, 2**40))
    at = {source: draw(st.one_of(st.just(0), st.integers(0, 2**50))) for source in pool}
    sources, order = pool[: draw(st.integers(0, len(pool)))], orders[0]
    found = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        if draw(st.integers(0, 4)) == 0:
            sources, order = (
                draw(st.permutations(pool))[: draw(st.integers(0, len(pool)))],
                draw(st.sampled_from(orders)),
            )
        places = st.dictionaries(st.integers(0, max(0, len(sources) - 1)), counts, max_size=len(sources))
        slices = draw(st.lists(places, min_size=1, max_size=5))
        begins = [at[source] for source in sources]
        for one in slices:
            for place, count in one.items():
                at[sources[place]] += count
        found.append(
            Cut.of(
                domain="d",
                incarnation=3,
                cut=number,
                sources=sources,
                begins=begins,
                ends=[at[source] for source in sources],
                looks=[list(one.items()) for one in slices[:-1]],
                topic_order=order,
            )
        )
    return found
