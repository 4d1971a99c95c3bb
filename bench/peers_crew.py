"""The processes of a run: the demo's crew, in other roles."""

import os
import subprocess
import sys

from totalorder.demo.crew import Crew, Member


class PeersCrew(Crew):
    """A Crew whose processes play the roles of peers_worker.py."""

    def start(self, name: str, role: str, **spec: object) -> Member:
        """As in Crew."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "totalorder.bench.peers_worker", role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "TMPDIR": str(self.folder), "SPARK_LOCAL_DIRS": str(self.folder)},
                start_new_session=True,
            )
        self._note(f"+{process.pid}")
        member = Member(name, process, log, self._heard)
        self.members.append(member)
        member.tell(**spec)
        return member
