"""`totalorder broker`: a local Kafka in the foreground."""

import json
import signal
from contextlib import closing, nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from totalorder.cli.options import Json, on_hangup, said_if_long
from totalorder.errors import BrokerUnavailable

_USUAL_PORT = 9092


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("broker", help="Run a single-node Kafka on this machine until Ctrl-C.")(run)


def run(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=0, max=65535, help="Port for clients. Not given: 9092 if free; 0: any free one."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="Keep the data in this folder. Not given: a temporary one, removed at the end."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start, say the address, and wait for Ctrl-C, SIGTERM, a closed terminal (SIGHUP) or the broker's own end."""
    from totalorder.broker import LocalBroker, is_port_free

    if port is None and is_port_free(_USUAL_PORT):
        port = _USUAL_PORT
    signal.signal(signal.SIGTERM, _interrupt)
    on_hangup(_interrupt)
    try:
        with closing(LocalBroker(port=port or None, data_dir=data_dir)) as broker:
            with nullcontext() if as_json else said_if_long("starting Kafka…"):
                broker.start()
            _announce(broker.bootstrap_servers, broker.data_dir, broker.log_path, as_json=as_json)
            broker.wait()
            raise BrokerUnavailable(f"The broker has ended by itself; the end of its log:\n{broker.log_tail()}")
    except KeyboardInterrupt:
        if not as_json:
            print("Stopped.")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _announce(bootstrap_servers: str, data_dir: Path, log: Path, *, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps({"bootstrap_servers": bootstrap_servers, "data_dir": str(data_dir), "log": str(log)}), flush=True
        )
        return
    print(f"Kafka listens on {bootstrap_servers}\n  data {data_dir}\n  log  {log}\nCtrl-C stops it.", flush=True)
