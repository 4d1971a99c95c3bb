"""`totalorder topics retire`: what it refuses, and what it says when nobody answers. With a job: test_job_topics.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from spark_job import records
from typer.testing import CliRunner, Result

from totalorder.broker import LocalBroker
from totalorder.cli.app import build_app
from totalorder.errors import Error, SettingsError
from totalorder.sequencer.wire.control import Answer, Rejection, Retire, Retired, Unsigned, encode_answer, parse_request
from totalorder.sequencer.wire.signing import Signatures
from totalorder.subscriber.kafka_python import KafkaPythonTransport

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]


def retire(topic: str, domain: str, broker: LocalBroker, *more: str) -> Result:
    words = ["topics", "retire", topic, "-d", domain, "-b", broker.bootstrap_servers, *more]
    return CliRunner().invoke(build_app(), words)


@pytest.fixture
def domain(unique_name: Callable[[str], str]) -> str:
    return unique_name("retiring")


@pytest.fixture
def begun(domain: str, kafka_admin: KafkaAdminClient) -> str:
    """A domain whose job does not run."""
    names = {f"{domain}.{kind}": {"num_partitions": 1} for kind in ("control", "grants")}
    kafka_admin.create_topics(names)
    kafka_admin.wait_for_topics(list(names))
    return domain


def test_what_cannot_be_retired(broker: LocalBroker, domain: str, new_topic: NewTopic) -> None:
    assert isinstance(retire(f"{domain}.stamps", domain, broker).exception, SettingsError)
    absent = retire("not-there", domain, broker).exception
    assert isinstance(absent, Error)
    assert "There is no topic 'not-there'" in str(absent)
    nowhere = retire(new_topic("a"), domain, broker).exception
    assert f"There is no topic {domain}.control. Check --domain" in str(nowhere)


def test_a_request_that_nobody_answers_stays(broker: LocalBroker, begun: str, new_topic: NewTopic) -> None:
    topic = new_topic("a")
    failed = retire(topic, begun, broker, "--wait-s", "0.5").exception
    assert f"No answer from the sequencer of domain '{begun}' within 0.5 s. The request stays" in str(failed)
    (written,) = records(broker.bootstrap_servers, f"{begun}.control")
    request = parse_request(written.value)
    assert isinstance(request, Retire)
    assert (request.topic, dict(request.seen)) == (topic, {})


def test_a_request_is_signed_by_who_has_the_domain_s_key(
    broker: LocalBroker, begun: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k" * 40)
    failed = retire(new_topic("a"), begun, broker, "--wait-s", "0", "--control-key-file", str(keys)).exception
    assert "No answer from the sequencer" in str(failed)
    (written,) = records(broker.bootstrap_servers, f"{begun}.control")
    assert isinstance(parse_request(written.value, Signatures(keys=("k" * 40,), domain=begun)), Retire)
    with pytest.raises(Unsigned):
        parse_request(written.value, Signatures(keys=("x" * 40,), domain=begun))


@pytest.mark.parametrize("refused", [False, True])
def test_the_answer_is_told(
    broker: LocalBroker, begun: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    topic, stem = new_topic("a"), {"g": 7, "offset": 0, "batch": 3, "incarnation": 1}
    answer: Answer = Retired(id="x", nonce="n", topic=topic, topic_id="i", lost={}, **stem)
    if refused:
        answer = Rejection(id="x", nonce="n", generation=0, reason="too many", **stem)

    ask = KafkaPythonTransport.send

    def send(transport: KafkaPythonTransport, *given: Any, **more: Any) -> int:
        """The answer is there as soon as the request is."""
        offset = ask(transport, *given, **more)
        producer: Any = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(f"{begun}.grants", encode_answer(answer), partition=0)
        assert producer.flush(30) == 0
        return offset

    monkeypatch.setattr(KafkaPythonTransport, "send", send)
    done = retire(topic, begun, broker, "--json")
    if refused:
        assert "The sequencer refused: too many" in str(done.exception)
    else:
        assert json.loads(done.output) == {"topic": topic, "topic_id": "i", "g": 7}
