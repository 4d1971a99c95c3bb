"""The README's consumer and commands, run as they stand there: on the test's broker, in a folder of their own."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from spark_process import START_BOUND_S, SequencerProcess
from waiting import wait_until

from totalorder.broker import LocalBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]
README = Path(__file__).parents[2] / "README.md"
DEFAULT_SERVERS = "localhost:9092"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def block_with(text: str) -> str:
    (found,) = (block for block in python_blocks() if text in block)
    return found


def commands() -> list[list[str]]:
    """Every `totalorder …` line of the README, without its comment."""
    lines = re.findall(r"^    (?:echo .* \| )?(totalorder .*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def command(name: str) -> list[str]:
    (found,) = (line for line in commands() if line[1] == name)
    return [str(Path(sys.executable).with_name("totalorder")), *found[1:]]


class AsGiven(SequencerProcess):
    """With the Java that a user has."""

    spark: ClassVar[Mapping[str, object]] = {}


def flags_of(line: list[str]) -> dict[str, str]:
    return {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(line[2::2], line[3::2], strict=True)
    }


def test_the_consumer_and_the_commands_do_what_is_said(broker: LocalBroker, tmp_path: Path) -> None:
    env = {**os.environ, "TOTALORDER_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    block = block_with('id="billing"')  # test_faces.py has the other ones
    assert len(block.strip().splitlines()) <= 10
    assert command("broker")[2:4] == ["--port", DEFAULT_SERVERS.partition(":")[2]]
    subprocess.run(command("topics"), env=env, check=True, timeout=START_BOUND_S)
    flags = flags_of(command("sequence")) | {"bootstrap_servers": broker.bootstrap_servers}
    flags["checkpoint_dir"] = str(tmp_path / flags["checkpoint_dir"])
    with AsGiven(**flags) as sequencer:
        sequencer.until_ready()
        code = block.replace(DEFAULT_SERVERS, broker.bootstrap_servers)
        consumer = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            sequencer.until("the subscription", lambda: any(line["controls"] for line in sequencer.logged("batch")))
            subprocess.run(command("publish"), input="first\n", text=True, env=env, check=True, timeout=START_BOUND_S)
            assert consumer.stdout is not None
            assert re.fullmatch(r"\d+ orders 1 b'first'\n", consumer.stdout.readline())
            # It asks for the second one when it has acknowledged the first.
            subprocess.run(command("publish"), input="second\n", text=True, env=env, check=True, timeout=START_BOUND_S)
            assert re.fullmatch(r"\d+ orders 2 b'second'\n", consumer.stdout.readline())
        finally:
            consumer.kill()
            consumer.wait(START_BOUND_S)
            assert consumer.stdout is not None
            consumer.stdout.close()
        # The same id by the command: it takes over where the consumer was.
        once = [*command("subscribe"), "--max", "1", "--timeout", str(START_BOUND_S)]
        shown = subprocess.Popen(once, env=env, stdout=subprocess.PIPE, text=True)
        wait_until(
            lambda: sum(line["controls"] for line in sequencer.logged("batch")) >= 2 or shown.poll() is not None,
            "the second subscription",
            bound_s=START_BOUND_S,
        )
        subprocess.run(command("publish"), input="third\n", text=True, env=env, check=True, timeout=START_BOUND_S)
        out, _ = shown.communicate(timeout=START_BOUND_S)
        assert shown.returncode == 0
        assert "first" not in out
        assert "second (redelivered)" in out or "third" in out
        look = [once[0], "inspect", "--domain", flags["domain"]]
        inspected = subprocess.run(look, env=env, check=True, timeout=START_BOUND_S, stdout=subprocess.PIPE, text=True)
        assert "orders" in inspected.stdout
        assert sequencer.terminate(signal.SIGINT) == 0
    # The job is down by now: what was delivered is read again, by the library and by the command.
    code = block_with("Reader(").replace(DEFAULT_SERVERS, broker.bootstrap_servers)
    read = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True, timeout=START_BOUND_S
    )
    position = r"shop/[\w-]{36}/\d+"
    lines = [rf"{position} orders {n} b'{value}'\n" for n, value in enumerate(("first", "second", "third"), 1)]
    assert re.fullmatch("".join(lines), read.stdout), read.stdout
    words = command("read")
    assert words[-1] == "--follow"
    words[words.index("--start") + 1] = read.stdout.split()[0]
    printed = subprocess.run(words[:-1], env=env, check=True, capture_output=True, text=True, timeout=START_BOUND_S)
    assert [line.split()[1] for line in printed.stdout.splitlines()] == ["orders#2", "orders#3"]
    assert re.fullmatch(rf"read through {position}\n", printed.stderr.splitlines(keepends=True)[-1])
