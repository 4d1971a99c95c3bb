"""A schema registry of a few lines, which speaks as much of the HTTP protocol as confluent's (de)serializers ask for.

It registers and gives schemas by id and guid, and knows no associations of topics and subjects: as registries do that
are older than those. It says what it was asked, stands still, answers an error or is away when a test wants it so.
"""

import json
import re
import threading
import uuid
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

_REGISTER = re.compile(r"/subjects/([^/]+)/versions")
_SCHEMA = re.compile(r"/schemas/(?:ids|guids)/([^/]+)")
_ASSOCIATIONS = re.compile(r"/associations/resources/[^/]+/([^/]+)")


class SchemaRegistry:
    """Answers at `url` from entry to exit, and between `start` and `stop`; what it knows stays."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """The paths of all questions, in their order."""
        self.failure: tuple[int, dict[str, Any]] | None = None
        """What it answers to all that is asked, while there is something here."""
        self.answers = threading.Event()
        self.answers.set()
        """While this is cleared, a question has no answer."""
        self._schemas: list[dict[str, Any]] = []
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        """The same through all that happens to it."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def asked_for(self) -> list[str]:
        """Of what was asked, what schema each question was for, by its id or guid."""
        return [found[1] for found in map(_SCHEMA.fullmatch, self.asked) if found is not None]

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler_of(self))
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="schema-registry")
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answers.set()
        self.stop()

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """The status and the answer to a question, which has a body when something is to be registered."""
        self.asked.append(path)
        assert self.answers.wait(60)
        if self.failure is not None:
            return self.failure
        if body is not None:
            assert _REGISTER.fullmatch(path), path
            return 200, self._registered(body)
        if _ASSOCIATIONS.fullmatch(path):
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        asked = _SCHEMA.fullmatch(path)
        assert asked is not None, path
        found = (each for each in self._schemas if asked[1] in (str(each["id"]), each["guid"]))
        unknown = (404, {"error_code": 40403, "message": f"Schema {asked[1]} not found"})
        return next(((200, each) for each in found), unknown)

    def _registered(self, schema: dict[str, Any]) -> dict[str, Any]:
        known = (each for each in self._schemas if each["schema"] == schema["schema"])
        if (found := next(known, None)) is None:
            number = len(self._schemas) + 1
            found = {**schema, "id": number, "guid": str(uuid.UUID(int=number))}
            self._schemas.append(found)
        return found


def _handler_of(registry: SchemaRegistry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            status, said = registry.answer(urlsplit(self.path).path, body)
            answer = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(ConnectionError):  # who asked has had enough of waiting
                self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
