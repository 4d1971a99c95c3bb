"""Keys of a simulated domain whose requests must be signed: who has which, who asks for what is not his, and which
signatures are good, by docs/formats.md alone.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from totalorder.sequencer.wire.control import Renew, Request, Retire, Skip, Subscribe, Unsubscribe, encode_request
from totalorder.subscriber.transport import Partition

if TYPE_CHECKING:
    from sim_world import World

CONTROL_KEYS = ("newer" * 8, "older" * 8)
"""Of a domain that is replacing its key."""
_RETIRE = "/retire"
_OF_TOPICS = ("retire", "skip")


def is_signed(request: Mapping[str, Any], keys: Sequence[str], domain: str) -> bool:
    """Whether a request is signed by who may ask for it; without keys each is."""
    signer = _RETIRE if request.get("kind") in _OF_TOPICS else request.get("id")
    given = request.get("signature")
    return not keys or any(given == _signature(key, domain, str(signer), request) for key in keys)


def _signature(key: str, domain: str, signer: str, request: Mapping[str, Any]) -> str:
    content = {name: value for name, value in request.items() if name != "signature"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return _h(_key_of(key, domain, signer), "totalorder control", domain, text)


def _key_of(key: str, domain: str, signer: str) -> str:
    return f"{signer}:{_h(key, 'totalorder key', domain, signer)}"


def _h(key: str, *parts: str) -> str:
    return hmac.new(key.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest()


class Keys:
    """Of a world. What others ask in a subscriber's or the job's name, and sign in vain, is noted."""

    def __init__(self, world: "World") -> None:
        self._world, self._rng = world, world.rng
        self.forged: set[int] = set()
        """Where on control that stands which nobody may have asked for."""

    def of(self, id: str) -> str | None:  # noqa: A002
        """What a subscriber is given: the domain's key, the one before it, or its own alone."""
        keys, name = self._world.domain.keys, self._world.domain.name
        if not keys:
            return None
        given = [*keys, *(_key_of(key, name, id) for key in keys)]
        return given[sum(id.encode()) % len(given)]

    def forge(self) -> None:
        """Somebody who has the key of one tenant, and all that lies on control, asks for what is not his."""
        world, rng = self._world, self._rng
        control = Partition(world.names.control, 0)
        request = json.loads(encode_request(rng.choice([self._change, self._of_topic])()))
        signature, is_good = self._wrong(request)
        if signature is not None:
            request["signature"] = signature
        value = json.dumps(request).encode()
        if not is_good:
            self.forged.add(world.kafka.end(control))
        world.kafka.append(control, key=str(request["id"]).encode(), value=value)

    def _change(self) -> Request:
        """What would be the next change of a subscription, or a renewal, if it were signed."""
        world, rng = self._world, self._rng
        id_ = rng.choice(world.slots).id
        held = next((answer for answer in reversed(world.sequencer.answers) if answer.id == id_), None)
        generation, nonce = (held.generation, held.nonce) if held is not None else (0, "x")
        kind = rng.random()
        if kind < 0.2 and generation:
            return Renew(id=id_, generation=generation, nonce=nonce)
        new = rng.choice([nonce, "evil"])
        if kind < 0.6:
            return Unsubscribe(id=id_, generation=generation + 1, nonce=new)
        at = [Partition(world.names.stamps, number) for number in range(world.domain.stamps_partitions)]
        ends = {place.number: world.kafka.end(place) for place in at}
        topics, lease_s = tuple(sorted(world.some_topics())), rng.choice([0, 1])
        return Subscribe(id=id_, generation=generation + 1, nonce=new, topics=topics, lease_s=lease_s, stamps_ends=ends)

    def _of_topic(self) -> Request:
        """That a topic be passed over, which is there."""
        world, rng = self._world, self._rng
        topic = rng.choice(sorted(world.kafka.topics.keys() & set(world.kafka_topics)) or ["t0"])
        id_, at = world.kafka.ids.get(topic, "id0"), Partition(topic, 0)
        if rng.random() < 0.4:
            return Retire(id="job", nonce="n", topic=topic, topic_id=id_, seen={0: world.kafka.end(at)})
        begin = world.sequencer.offsets.get(at._replace(topic_id=id_), 0)
        end = max(begin, world.kafka.end(at)) + rng.randint(1, 5)
        return Skip(id="job", nonce="n", topic=topic, topic_id=id_, partition=0, begin=begin, end=end)

    def _wrong(self, request: dict[str, Any]) -> tuple[str | None, bool]:
        """A signature that is not one of this request; and whether it is by chance."""
        world, rng = self._world, self._rng
        domain, signer = world.domain, _RETIRE if request["kind"] in _OF_TOPICS else str(request["id"])
        key, true = rng.choice(domain.keys), _signature(domain.keys[0], domain.name, signer, request)
        found = rng.choice(
            [
                None,
                "",
                true.upper(),
                true[:-1],
                _signature("wrong" * 8, domain.name, signer, request),
                _signature(key, "another", signer, request),
                _signature(key, domain.name, "mallory", request),
                _signature(key, domain.name, str(request["id"]) if signer == _RETIRE else _RETIRE, request),
                _signature(key, domain.name, signer, request | {"nonce": "another"}),
                self._copied(),
            ]
        )
        return found, is_signed(request | {"signature": found}, domain.keys, domain.name)

    def _copied(self) -> str | None:
        """The signature of something that was asked before."""
        log = self._world.kafka.logs.get(Partition(self._world.names.control, 0), [])
        found = [json.loads(record.value) for record in log if record.value and b'"signature"' in record.value]
        return str(self._rng.choice(found).get("signature")) if found else None
