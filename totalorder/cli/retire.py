"""`totalorder topics retire`: takes a Kafka topic out of a domain."""

import json
import secrets
import time
from typing import TYPE_CHECKING, Annotated

import typer

from totalorder.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DOMAIN,
    BootstrapServers,
    ControlKeyFile,
    Domain,
    Json,
    Kafka,
    kafka_settings,
    said_if_long,
)
from totalorder.errors import Error, SettingsError
from totalorder.words import did_you_mean

if TYPE_CHECKING:
    from totalorder.sequencer.wire.control import Rejection, Retired
    from totalorder.sequencer.wire.names import DomainTopics
    from totalorder.sequencer.wire.signing import Signer
    from totalorder.subscriber.transport import Transport

_POLL_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the command, to those of `topics`."""
    app.command("retire", help="Take a topic out of a domain, for ever; its sequencer must run.")(run)


def run(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The Kafka topic, which is not deleted.")],
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="Wait this long for the sequencer.")] = 30.0,
    domain: Domain = DEFAULT_DOMAIN,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    control_key_file: ControlKeyFile = None,
    as_json: Json = False,
) -> None:
    """Writes a request to control, and waits for its answer on grants."""
    settings = kafka_settings(kafka)

    from totalorder.control_keys import read_signatures
    from totalorder.sequencer.wire.names import DomainTopics
    from totalorder.sequencer.wire.signing import RETIRE
    from totalorder.subscriber.kafka_python import KafkaPythonTransport

    names = DomainTopics(domain=domain)
    if topic in names.own():
        raise SettingsError(f"{topic} is a topic of the domain's own", remedy="Name an event topic.")
    signatures = read_signatures(control_key_file, domain)
    signer = signatures.signer(RETIRE) if signatures else None
    topic_id = _id_of(topic, bootstrap_servers, settings)
    transport = KafkaPythonTransport(bootstrap_servers, settings)
    try:
        with said_if_long(f"Waiting for the sequencer of domain {domain} …"):
            answer = _asked(transport, names, topic, topic_id, wait_s, signer)
    finally:
        transport.close()
    _show(answer, as_json=as_json)


def _id_of(topic: str, bootstrap_servers: str, settings: dict[str, str]) -> str:
    from totalorder import kafka_clients

    with kafka_clients.kafka_errors(bootstrap_servers), kafka_clients.admin(bootstrap_servers, settings) as admin:
        (found,) = admin.describe_topics([topic])
        there = admin.list_topics() if found["error_code"] else ()
    if found["error_code"]:
        raise Error(
            f"There is no topic {topic!r} on {bootstrap_servers}",
            remedy=f"{did_you_mean(topic, there)}Check its name. One that was deleted is retired by the job itself.",
        )
    return str(found["topic_id"])


def _asked(
    transport: "Transport", names: "DomainTopics", topic: str, topic_id: str, wait_s: float, signer: "Signer | None"
) -> "Retired | Rejection":
    from totalorder.sequencer.wire.control import Rejection, Retire, Retired, decode_answer, encode_request
    from totalorder.subscriber.transport import Partition

    grants, control = Partition(names.grants, 0), Partition(names.control, 0)
    if not transport.partitions(names.control):
        raise Error(
            f"There is no topic {names.control}", remedy="Check --domain; `totalorder sequence` makes its topics."
        )
    transport.read(grants, transport.end_offsets([grants])[grants])
    request = Retire(id="totalorder-topics", nonce=secrets.token_hex(8), topic=topic, topic_id=topic_id, seen={})
    offset = transport.send(control, None, encode_request(request, signer))
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        for record in transport.poll(_POLL_S):
            answer = decode_answer(record.value) if record.value is not None else None
            if isinstance(answer, Retired | Rejection) and answer.offset == offset:
                return answer
    raise Error(
        f"No answer from the sequencer of domain {names.domain!r} within {wait_s:g} s",
        remedy="The request stays on control and takes effect when `totalorder sequence` runs.",
    )


def _show(answer: "Retired | Rejection", *, as_json: bool) -> None:
    from totalorder.sequencer.wire.control import Rejection

    if isinstance(answer, Rejection):
        raise Error(f"The sequencer refused: {answer.reason}")
    if as_json:
        print(json.dumps({"topic": answer.topic, "topic_id": answer.topic_id, "g": answer.g}))
    else:
        print(f"Retired {answer.topic} (id {answer.topic_id}): nothing of it is stamped behind g {answer.g}.")
        print("Take it out of the sequencer's settings before its next start, or leave it: it is not read again.")
