"""What a client said is kept for whoever waits in vain, and the reason is not lost to a mere count of brokers."""

from confluent_kafka import KafkaError

from totalorder.streaming.cut.failures import Trouble


def said(*errors: tuple[int, str]) -> str:
    trouble = Trouble()
    for code, text in errors:
        trouble.note(KafkaError(code, text))
    return trouble.said()


def test_nothing_was_said() -> None:
    assert said() == ""


def test_the_last_word_is_told() -> None:
    assert said((KafkaError._TRANSPORT, "refused"), (KafkaError._SSL, "bad certificate")).endswith(": bad certificate")


def test_that_all_are_down_is_told_only_where_no_reason_is_known() -> None:
    down = (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert said(down).endswith("said: 1/1 brokers are down")
    assert said((KafkaError._SSL, "bad certificate"), down).endswith("said: bad certificate")
    assert said(down, (KafkaError._SSL, "bad certificate"), down).endswith("said: bad certificate")
