"""`totalorder control-key`: the key that signs for one subscriber id."""

from typing import Annotated

import typer

from totalorder.cli.options import DEFAULT_DOMAIN, ControlKeyFile, Domain
from totalorder.errors import SettingsError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("control-key", help="Print the key that signs for one subscriber id, and no other.")(run)


def run(
    id: Annotated[str, typer.Argument(metavar="ID", help="The subscriber's id.")],  # noqa: A002
    domain: Domain = DEFAULT_DOMAIN,
    control_key_file: ControlKeyFile = None,
) -> None:
    """Derives it from the domain's control key, the first of the file."""
    from totalorder.control_keys import read_keys
    from totalorder.sequencer.wire.names import DomainTopics, valid_id
    from totalorder.sequencer.wire.signing import key_of

    if not valid_id(id):
        raise SettingsError(f"{id!r} cannot be a subscriber's id")
    if control_key_file is None:
        raise SettingsError("the option --control-key-file is missing: the domain's control key is in it")
    DomainTopics(domain=domain)
    print(key_of(read_keys(control_key_file)[0], domain=domain, signer=id))
