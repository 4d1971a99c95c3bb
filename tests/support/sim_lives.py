"""The processes of subscriber ids in a simulated world: how they begin and end, and what applications do meanwhile."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit
from sim_kafka import SimCrash
from sim_process import Handed, Process, StormTransport, polled
from sim_stores import end

from totalorder.errors import (
    BrokerUnavailable,
    EventsLost,
    Fenced,
    Rejected,
    SequencerUnavailable,
    SettingsError,
    StoreUnavailable,
    SubscriptionEnded,
)
from totalorder.sequencer.wire.control import Grant, Renew, encode_request
from totalorder.subscriber import Subscriber
from totalorder.subscriber.transport import Partition

if TYPE_CHECKING:
    from sim_world import World

START_MS = 1_700_000_000_000


class Slot:
    """A subscriber id and its processes, oldest first. More than one may think that it holds the id."""

    def __init__(self, id: str, topics: list[str]) -> None:  # noqa: A002
        self.id, self.topics = id, topics
        self.processes: list[Process] = []
        self.stores = False
        """Whether its position is in a database of its application."""
        self.must_begin_anew = False
        """After a lapse that cannot be healed."""
        self.must_skip = False
        """After a loss that stopped a process."""


class Lives:
    """All processes that there ever were, by nonce. Each is told everything that it does by the world's seed."""

    def __init__(self, world: "World") -> None:
        self.by_nonce: dict[str, Process] = {}
        self._world, self._rng = world, world.rng

    def begin(self, slot: Slot) -> None:
        """A process begins when its turn comes; a former one, if there is one, may not know."""
        process = self._new(slot)
        self._world.turns.begin(process, lambda: self._guarded(slot, process, lambda: self._live(slot, process)))

    def kill(self, process: Process) -> None:
        """It ends here, in the middle of whatever it does."""
        process.note_ready()
        process.dead, process.ended = True, process.ended or "killed"
        self._world.turns.end(process)
        end(process)

    def finish(self, process: Process) -> None:
        """The call that it is amid of comes back, now that nothing is in its way; if it never does, the world's time is
        over.
        """
        if process.run:
            process.transport.crash_in, process.transport.fair, process.transport.most = None, True, 50
            process.run.switch()

    def renew_late(self) -> None:
        """A process that slept renews what it was granted once, or one that is dead by now had a slow client."""
        granted = [answer for answer in self._world.sequencer.answers if isinstance(answer, Grant)]
        if granted:
            one = self._rng.choice(granted[-10:])
            request = Renew(id=one.id, generation=one.generation, nonce=one.nonce)
            control, signatures = Partition(self._world.names.control, 0), self._world.sequencer.signatures
            value = encode_request(request, signatures.signer(one.id) if signatures is not None else None)
            self._world.kafka.append(control, key=one.id.encode(), value=value)

    def settle(self, slot: Slot) -> None:
        """Polls until nothing comes for a long time; a process that is found to be over gets a successor."""
        quiet = 0
        for _ in range(3_000):
            process = slot.processes[-1] if slot.processes else None
            if process is None or process.dead or process.subscriber is None:
                process = self._new(slot)
                self._guarded(slot, process, lambda process=process: self._make(slot, process))  # type: ignore[misc]
                continue
            transport = process.transport
            transport.crash_in, transport.fair, transport.most = None, True, 50
            process.subscriber.resume()
            before = len(process.handed)
            self._guarded(slot, process, lambda process=process: self._take_all(slot, process))  # type: ignore[misc]
            quiet = quiet + 1 if len(process.handed) == before and transport.at_ends() else 0
            if quiet > 3:
                return
        raise AssertionError(f"{slot.id} does not come to rest")

    # --- a life -------------------------------------------------------------------------------------------------------

    def _new(self, slot: Slot) -> Process:
        rng, world = self._rng, self._world
        anew = world.has("anew") and bool(slot.processes) and not world.healing and rng.random() < 0.2
        transport = StormTransport(world)
        process = transport.process = Process(
            id=slot.id,
            nonce=f"n{len(self.by_nonce)}",
            anew=anew or slot.must_begin_anew,
            save_interval_s=rng.choice([0, 0, 3]),
            receipts=rng.random() < 0.9,
            transport=transport,
        )
        slot.must_begin_anew = False
        if world.loses_events:
            process.skips = slot.must_skip or not world.has("fails") or rng.random() < 0.5
        if world.healing:
            transport.fair, transport.most = True, 50
        elif world.has("crashes") and rng.random() < 0.2:
            transport.crash_in = rng.randint(1, 40)
        process.kept = list(world.retention.needs(slot.id)) if world.has("trims") else []
        slot.processes.append(process)
        self.by_nonce[process.nonce] = process
        return process

    def _guarded(self, slot: Slot, process: Process, work: Callable[[], None]) -> None:
        """Runs a process's code; notes how it ends."""
        locked = (StoreUnavailable,) if slot.stores else ()  # by a transaction of another process
        try:
            process.idle = False
            work()
            process.idle = True
        except (SimCrash, GreenletExit):
            process.ended = process.ended or "killed"
        except (Fenced, SubscriptionEnded, Rejected, BrokerUnavailable, SequencerUnavailable, *locked) as error:
            process.ended = type(error).__name__
        except SettingsError as error:
            if "so far fits the pattern" not in str(error):
                raise
            process.ended = "SettingsError"
        except EventsLost as error:
            if "cannot be put in an order that all share" in str(error):
                process.ended, slot.must_begin_anew = "unordered", True
            elif self._world.loses_events and not process.skips:
                process.ended, slot.must_skip = "lost", True
            else:
                raise
        finally:
            process.note_ready()
        if process.ended and process.subscriber is not None and not process.dead:
            process.acking.append((self._world.moment, self._acked(process)))
            with suppress(SimCrash, GreenletExit):
                process.subscriber.close()
        if process.ended:
            process.subscriber = None
            end(process)

    def _live(self, slot: Slot, process: Process) -> None:
        self._make(slot, process)
        for _ in range(self._rng.randint(1, 60)):
            process.idle = True
            self._world.turns.let_others()
            if process.dead:
                raise GreenletExit
            if self._world.healing:
                return
            process.idle = False
            self._act(slot, process)
            if process.ended:
                return
        self.close(process)

    def _make(self, slot: Slot, process: Process) -> None:
        world, rng = self._world, self._rng
        # Told to the process before it is made, so that what it holds ready while it begins can be seen.
        process.making = Subscriber.__new__(Subscriber)
        process.making.__init__(  # type: ignore[misc]
            **self._chosen(slot, world.some_topics() if world.has("changes") else slot.topics),
            id=slot.id,
            domain=world.domain.name,
            start="now" if process.anew else "saved",
            on_lost="skip" if process.skips else "fail",
            lease_s=world.lease_s,
            start_timeout_s=rng.choice([2, 30, 1e6]) if world.has("timeouts") and not world.healing else 1e6,
            save_interval_s=process.save_interval_s,
            max_buffered=rng.choice([1, 2, 5]) if world.has("tiny") else 1000,
            receipts=process.receipts,
            positions=world.stores.positions(slot.id) if slot.stores else None,
            control_key=world.keys.of(slot.id),
            transport=process.transport,
            clock=lambda: world.now,
            wall_clock=lambda: START_MS / 1000 + world.now,
            nonce=process.nonce,
        )
        process.subscriber, process.started_at = process.making, world.moment
        process.known.add(process.subscriber.metrics().generation)

    def _chosen(self, slot: Slot, topics: list[str]) -> dict[str, Any]:
        """These topics, or now and then a pattern, which a topic that is yet to come may fit."""
        world, rng = self._world, self._rng
        can_follow = world.has("patterns") and world.domain.topic_by == "topic" and not slot.stores
        if not can_follow or world.healing or rng.random() < 0.5:
            return {"topics": topics}
        return {"pattern": rng.choice(["t.*", "|".join(topics)])}

    # --- an application -----------------------------------------------------------------------------------------------

    def _act(self, slot: Slot, process: Process) -> None:
        """One thing that an application does."""
        rng, world, subscriber = self._rng, self._world, process.subscriber
        assert subscriber is not None
        if process.drained and subscriber.finished:
            if process.handed:
                self._acknowledge(slot, process, len(process.handed))
            if not slot.stores or process.committed == len(process.handed):
                self.close(process)
            return
        draw = rng.random()
        if draw < 0.6:
            for _ in range(rng.randint(1, 5)):
                if not self._take(process):
                    break
        elif draw < 0.85:
            if process.handed:
                upto = len(process.handed) if rng.random() < 0.7 else rng.randint(1, len(process.handed))
                self._acknowledge(slot, process, upto)
        elif draw < 0.90 and world.has("changes") and not process.drained and not process.undone:
            for _ in range(rng.choice([1, 1, 2, 3])):  # one right after another
                subscriber.subscribe(**self._chosen(slot, world.some_topics()))
                process.known.add(subscriber.metrics().generation)
        elif draw < 0.93 and world.has("drops") and not process.drained:
            self._unsubscribe(process)
        elif draw < 0.96 and world.has("crashes"):
            process.transport.crash_in = rng.randint(1, 20)
        elif world.has("pauses"):
            (subscriber.pause if rng.random() < 0.5 else subscriber.resume)()

    def _take(self, process: Process) -> bool:
        """Polls once; whether anything came."""
        assert process.subscriber is not None
        events = polled(process.subscriber, self._rng)
        process.known.add(process.subscriber._session.generation)  # topics that came to a pattern have changed it
        for event in events:
            process.seen_g = max(process.seen_g, event.g)
            process.handed.append(Handed(self._world.moment, event))
        return bool(events)

    def _take_all(self, slot: Slot, process: Process) -> None:
        for _ in range(100):
            if not self._take(process):
                break
        if process.handed:
            self._acknowledge(slot, process, len(process.handed))

    def _acked(self, process: Process) -> int:
        return max((count for _, count in process.acking), default=0)

    def _acknowledge(self, slot: Slot, process: Process, count: int) -> None:
        """Acknowledges the first `count` events."""
        assert process.subscriber is not None
        if slot.stores:
            self._world.stores.work(process, count)
            return
        process.acking.append((self._world.moment, count))
        process.subscriber.ack(process.handed[count - 1].event)
        if process.save_interval_s == 0:
            process.durable.append((self._world.moment, self._acked(process)))

    def close(self, process: Process) -> None:
        """Ends the process in good order; what it acknowledged is saved, unless Kafka was silent."""
        assert process.subscriber is not None
        silences = process.transport.silences
        process.subscriber.close()
        if silences == process.transport.silences and process.connection is None:
            process.durable.append((self._world.moment, self._acked(process)))
        process.ended, process.subscriber = "closed", None

    def _unsubscribe(self, process: Process) -> None:
        assert process.subscriber is not None
        if self._rng.random() < 0.5:
            process.dropping_at = self._world.moment
            process.subscriber.unsubscribe(drain=False)
            process.has_ended = True
            process.dropped_at = self._world.moment
            process.subscriber.close()
            process.ended, process.subscriber = "dropped", None
        else:
            process.drained = True
            process.subscriber.unsubscribe(drain=True)
            process.has_ended = True
