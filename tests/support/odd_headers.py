"""Headers as other clients can send them."""


class NotUtf8(str):
    """A header's name, to kafka-python's producer."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"
