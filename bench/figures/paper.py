"""The paper's deployment (§5.1, figures 11 and 12): what its protocol makes servers forward to each other.

Five servers hold the managers of 200 topics each, those of the topics of highest rank on the first. A timestamp begins
at its topic's manager, and each manager passes it on to the next one above in the sequencing group (§3.4).
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from totalorder.bench.figures.size import Groups, co_subscriptions, sequencing_groups
from totalorder.bench.workload import Workload

SERVERS = 5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Forwarded:
    """By server: bytes of timestamps that it forwards to other servers, as a share of those that it handles.

    The paper does not say whether a timestamp that several managers of one server fill in is handled `once` or by
    each of them (`per_manager`).
    """

    once: Floats
    per_manager: Floats


def forwarded_by_site(workload: Workload, subscribers: int, size: int, draws: int) -> Forwarded:
    """As many clients at the site of each server subscribe and publish by the same power law; mean of some draws.

    The paper does not say how popularity differs between sites. Here a site's most popular topics are those of its own
    server in the order of their ranks, then those of the next server, and so on around.
    """
    first = np.arange(SERVERS) * (workload.topics // SERVERS)
    popularity = np.mean([np.roll(workload.popularity, at) for at in first], axis=0)
    found = []
    for draw in range(draws):
        drawn = replace(workload, seed=draw).subscriptions(subscribers, size)
        site = np.arange(subscribers) % SERVERS
        subscriptions = (drawn + first[site, np.newaxis]) % workload.topics
        found.append(forwarded(sequencing_groups(co_subscriptions(subscriptions, workload.topics), 2), popularity))
    return Forwarded(
        once=np.mean([each.once for each in found], axis=0),
        per_manager=np.mean([each.per_manager for each in found], axis=0),
    )


def forwarded(groups: Groups, popularity: Floats) -> Forwarded:
    """With an event on each topic as often as `popularity` says; topics are in the order of their ranks."""
    topics = len(groups)
    above = groups & np.tri(topics, dtype=bool)
    managers = above.reshape(topics, SERVERS, topics // SERVERS).sum(axis=2)
    through = managers > 0
    # The path goes up, so a timestamp leaves a server if any of those above it is on its path.
    leaving = through & (np.cumsum(through, axis=1) > 1)
    entries = popularity * groups.sum(axis=1)
    sent = entries @ leaving
    return Forwarded(once=_ratio(sent, entries @ through), per_manager=_ratio(sent, entries @ managers))


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
