"""The faults of a storm, by their names. When a function returns its fault is over; what it hit may still be down."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from small_disk import Full
from torture_parts import HEALED_S, OUTAGE_S, Command, signalled, stopped
from waiting import wait_until

if TYPE_CHECKING:
    from torture import Storm

_CLOCK_JUMP_MS = 3_600_000
_FULL = "a disk is full"
Fault = Callable[["Storm"], None]


# --- killed -----------------------------------------------------------------------------------------------------------


def _kill_driver(storm: "Storm") -> None:
    storm.job.kill()


def _kill_java(storm: "Storm") -> None:
    signalled(storm.job.below("java"), signal.SIGKILL)


def _kill_worker(storm: "Storm") -> None:
    signalled(storm.choose(storm.job.below("totalorder.streaming.daemon")), signal.SIGKILL)


def _kill_source(storm: "Storm") -> None:
    signalled(storm.job.below("python_streaming_source_runner"), signal.SIGKILL)


def _kill_subscriber(storm: "Storm") -> None:
    signalled(storm.choose([one.pid for one in storm.subscribers.values()]), signal.SIGKILL)


def _kill_subscribers(storm: "Storm") -> None:
    signalled([one.pid for one in storm.subscribers.values()], signal.SIGKILL)


def _kill_broker(storm: "Storm") -> None:
    storm.broker.kill()
    storm.pass_time(storm.pick(0, 5))
    storm.broker.start()


def _kill_broker_amid_a_start(storm: "Storm") -> None:
    """The job's, in whatever step of it."""
    storm.job.kill()
    storm.pass_time(storm.pick(0, 15))
    _kill_broker(storm)


def _restart_broker(storm: "Storm") -> None:
    storm.broker.stop()
    storm.pass_time(storm.pick(0, 5))
    storm.broker.start()


def _kill_all(storm: "Storm") -> None:
    _kill_subscribers(storm)
    for command in storm.commands:
        command.kill()
    _kill_broker(storm)


def _kill_lineage(storm: "Storm") -> None:
    _lineage(storm).kill()


def _kill_lineage_java(storm: "Storm") -> None:
    signalled(_lineage(storm).below("java"), signal.SIGKILL)


# --- standing still ---------------------------------------------------------------------------------------------------


def _stand(storm: "Storm", pids: list[int]) -> None:
    with stopped(pids):
        storm.pass_time(storm.pick(1, 10))


def _stop_driver(storm: "Storm") -> None:
    _stand(storm, [storm.job.process.pid])


def _stop_java(storm: "Storm") -> None:
    _stand(storm, storm.job.below("java"))


def _stop_python(storm: "Storm") -> None:
    _stand(storm, storm.choose(storm.job.below("python")))


def _stop_broker(storm: "Storm") -> None:
    assert storm.broker.pid is not None
    _stand(storm, [storm.broker.pid])


def _stop_subscriber(storm: "Storm") -> None:
    _stand(storm, storm.choose([one.pid for one in storm.subscribers.values()]))


def _stop_lineage(storm: "Storm") -> None:
    _stand(storm, storm.choose(_lineage(storm).all))


def _stop_machine(storm: "Storm") -> None:
    """All but the publisher, which is the storm's own."""
    assert storm.broker.pid is not None
    _stand(storm, [storm.broker.pid, *storm.everybody])


def _stop_machine_without_broker(storm: "Storm") -> None:
    """For longer than an outage is borne, from when requests were under way that the broker did not answer any more."""
    assert storm.broker.pid is not None
    with stopped([storm.broker.pid]):
        storm.pass_time(1)
        storm.broker.kill()
    storm.pass_time(0.5)
    with stopped(storm.everybody):
        storm.pass_time(OUTAGE_S + 5)
    storm.broker.start()


# --- the rest ---------------------------------------------------------------------------------------------------------


def _clock_jump(storm: "Storm") -> None:
    for off_ms in (_CLOCK_JUMP_MS, -_CLOCK_JUMP_MS, 0):
        storm.publisher.clock_off_ms = off_ms
        storm.pass_time(storm.pick(0.5, 2))


def _fill_checkpoint(storm: "Storm") -> None:
    """Until the job has ended and said why; it is started anew all the time, as a supervisor does."""
    before = len(storm.job.said_last)

    def has_said_so() -> bool:
        full.fill()
        return any(_FULL in words for words in storm.job.said_last[before:])

    with Full(storm.disks["checkpoint"]) as full:
        storm.until("the job has ended for want of room", has_said_so)
        storm.pass_time(storm.pick(0, 20))
    assert all(_FULL in words for words in storm.job.said_last[before:]), storm.job.said_last[before:]


def _fill_broker(storm: "Storm") -> None:
    """Until Kafka has ended itself; somebody makes room, and starts it again."""

    def has_ended() -> bool:
        full.fill()
        return not storm.broker.running

    with Full(storm.disks["broker"]) as full:
        wait_until(has_ended, "the broker has ended for want of room", bound_s=HEALED_S)
        assert "is full" in storm.broker.log_tail()
    storm.broker.kill()  # lets go of what is left of it
    storm.broker.start()


def _lineage(storm: "Storm") -> Command:
    assert storm.lineage is not None
    return storm.lineage


FAULTS: dict[str, Fault] = {
    "kill the driver": _kill_driver,
    "kill Java": _kill_java,
    "kill a Python worker": _kill_worker,
    "kill the source": _kill_source,
    "kill a subscriber": _kill_subscriber,
    "kill all subscribers": _kill_subscribers,
    "kill the broker": _kill_broker,
    "kill the broker amid a start of the job": _kill_broker_amid_a_start,
    "restart the broker": _restart_broker,
    "stop the driver for a while": _stop_driver,
    "stop Java for a while": _stop_java,
    "stop a Python process of the job for a while": _stop_python,
    "stop the broker for a while": _stop_broker,
    "stop a subscriber for a while": _stop_subscriber,
    "the machine stands still": _stop_machine,
    "the machine stands still without its broker": _stop_machine_without_broker,
    "the publisher's clock jumps": _clock_jump,
    "kill everything": _kill_all,
}
OF_LINEAGE: dict[str, Fault] = {
    "kill lineage": _kill_lineage,
    "kill lineage's Java": _kill_lineage_java,
    "stop a process of lineage for a while": _stop_lineage,
}
"""Where lineage runs too."""
OF_DISKS: dict[str, Fault] = {
    "fill the disk under the checkpoint": _fill_checkpoint,
    "fill the disk under the broker": _fill_broker,
}
"""Where disks can be mounted."""
EVERY = FAULTS | OF_LINEAGE | OF_DISKS
