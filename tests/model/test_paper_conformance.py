"""Where the paper is right, we agree with it: with static subscriptions and instantaneous messages, to the number."""

from hypothesis import given, strategies as st
from paper_model import PaperModel
from reference import Event, Item, change, reference_stamps

TOPICS = "abcd"


@given(
    subscriptions=st.lists(st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=6),
    publications=st.lists(st.sampled_from(TOPICS), max_size=12),
    ranks=st.permutations(TOPICS),
)
def test_timestamps_equal_the_papers(subscriptions: list[set[str]], publications: list[str], ranks: list[str]) -> None:
    model = PaperModel(ranks)
    model.preload(**{f"s{index}": topics for index, topics in enumerate(subscriptions)})
    for number, topic in enumerate(publications):
        model.publish(f"e{number}", topic)
        model.settle()

    items: list[Item] = [change(f"s{index}", topics) for index, topics in enumerate(subscriptions)]
    items += [Event(topic) for topic in publications]
    ours = [stamp.entries | {stamp.topic: stamp.n} for stamp in reference_stamps(items, 2)]

    assert ours == [model.timestamps[f"e{number}"] for number in range(len(publications))]
    for index, topics in enumerate(subscriptions):
        model.notify(f"s{index}")
        expected = [f"e{number}" for number, topic in enumerate(publications) if topic in topics]
        assert model.subscribers[f"s{index}"].notified == expected
