"""One call at a time, of one process: what a Subscriber and a Reader let in."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from totalorder.defects import defect_in
from totalorder.errors import Defect, Error, SettingsError
from totalorder.subscriber.seeing import LOG


class Misused(Error):
    """A call that came while another one was under way, or in another process."""


class Interrupted(Error):
    """What a call had under way is torn."""


class _Here:
    """This process: os.getpid() asks the kernel each time, which takes as long as handing out an event."""

    id = os.getpid()

    @classmethod
    def note(cls) -> None:
        """It is a fork of another one."""
        cls.id = os.getpid()


os.register_at_fork(after_in_child=_Here.note)


class Guard:
    """Lets in one call at a time, and remembers what went wrong within: from then on every call raises it again.

    `kind` is what it guards, as users know it; `goes_on`, what a new one does.
    """

    def __init__(self, kind: str, *, goes_on: str) -> None:
        self._kind, self._goes_on = kind, goes_on
        self.failure: Error | None = None
        self._spared: Error | None = None
        self._one_call = threading.Lock()
        self._thread = 0
        self._process = _Here.id

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy that came with a fork: connections and threads are those of the other process."""
        return self._process != _Here.id

    def __enter__(self) -> None:
        if self._process != _Here.id or not self._one_call.acquire(blocking=False):
            raise self._misused()
        self._thread = threading.get_ident()

    def _misused(self) -> Misused:
        if self.is_forked:
            return Misused(
                f"a {self._kind} of process {self._process} was called in process {_Here.id}, a fork of it",
                remedy=f"Make a {self._kind} in the process that uses it",
            )
        here = self._thread == threading.get_ident()
        return Misused(
            f"a {self._kind} was called in the middle of another call, by a signal handler"
            if here
            else f"two threads call one {self._kind} at once",
            remedy=f"A {self._kind} is for one thread, and only stop() may be called from elsewhere",
        )

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Within a call, while nothing is touched: after a SettingsError the next one goes on."""
        try:
            yield
        except SettingsError as error:
            self._spared = error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one_call.release()
        if error is None:
            return
        defect = self._defect(error)
        self._note(defect or error)
        if defect is not None:
            raise defect from error

    @contextmanager
    def told(self) -> Iterator[None]:
        """Where no call is let in: an assertion of ours that fails within is a Defect here too."""
        try:
            yield
        except AssertionError as error:
            if (defect := self._defect(error)) is None:
                raise
            raise defect from error

    def _defect(self, error: BaseException) -> Defect | None:
        stopped = f"Nothing more is delivered, and no position is written. Make a new {self._kind}: {self._goes_on}"
        return defect_in(error, stopped=stopped)

    def _note(self, error: BaseException) -> None:
        spared, self._spared = self._spared, None
        if error is spared or isinstance(error, Misused):
            return
        if isinstance(error, Error):
            self.failure = error
            if LOG.hasHandlers():  # else Python would print it on stderr, beside the error itself
                LOG.error("a %s has stopped: %s", self._kind, error)
        else:
            # Records that had come, or half of an acknowledgement, may be nowhere now.
            self.failure = Interrupted(
                f"a call was interrupted by {type(error).__name__}, and what was under way in it is not known",
                remedy=f"Make a new {self._kind}: {self._goes_on}. A signal handler may call stop(), and must not "
                "raise",
            )
