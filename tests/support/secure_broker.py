"""A local broker that also listens with a login, with TLS, and with both, beside its plain port."""

import subprocess
from pathlib import Path

from kafka.admin import UserScramCredentialUpsertion
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import HOST, LocalBroker, is_port_free
from totalorder.java import find_java

USER, PASSWORD = "alice", "it's; 1=\\ one"
# Java reads the broker's line as a client's: single quotes, an escaped one, and a backslash.
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice='it\\'s; 1=\\\\ one';"  # as PASSWORD
)
SCRAM = "SCRAM-SHA-512"
"""Taken at `login` from those whom `add_scram_user` has made known."""
_SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_STORE_PASSWORD = "changeit"
_QUOTED = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f"username='{USER}' password='{_QUOTED}';",
}
"""Settings of a client of `login`."""
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings with which nobody may do what no ACL allows, but who comes by the plain port."""


class SecureBroker(LocalBroker):
    """`login`, `tls` and `both` are addresses as `bootstrap_servers` is; `certificate` is what signs the last two."""

    login = tls = both = ""

    @property
    def certificate(self) -> Path:
        """A PEM file for `ssl.truststore.location`."""
        return self.data_dir / "broker.pem"

    def add_scram_user(self, user: str, password: str) -> None:
        """From now on this user may log in by SCRAM."""
        with kafka_clients.admin(self.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, SCRAM, password)])
            known = admin.describe_user_scram_credentials
            wait_until(lambda: bool(known([user])[user]["credential_infos"]), "the broker knows the user")

    def _write_settings(self) -> None:
        self._make_certificate()
        more = [port for port in range(self.port + 1, self.port + 50) if is_port_free(port)][:3]
        self.login, self.tls, self.both = (f"{HOST}:{port}" for port in more)
        listeners = f"LOGIN://{self.login},TLS://{self.tls},BOTH://{self.both}"
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"}
        protocols |= {"LOGIN": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
        self._settings |= {
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            "listener.name.login.plain.sasl.jaas.config": _JAAS,
            f"listener.name.login.{SCRAM.lower()}.sasl.jaas.config": _SCRAM_JAAS,
            "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.both.plain.sasl.jaas.config": _JAAS,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.data_dir / "broker.p12"),
            "ssl.keystore.password": _STORE_PASSWORD,
        }
        super()._write_settings()
        path = self.data_dir / "server.properties"
        lines = path.read_text(encoding="utf-8").splitlines()
        added = [f"{line},{listeners}" if line.partition("=")[0].endswith("listeners") else line for line in lines]
        path.write_text("\n".join(added), encoding="utf-8")

    def _make_certificate(self) -> None:
        tool = [str(find_java().executable.with_name("keytool")), "-keystore", str(self.data_dir / "broker.p12")]
        tool += ["-storepass", _STORE_PASSWORD, "-alias", "broker"]
        names = ["-dname", "CN=localhost", "-ext", f"san=ip:{HOST}", "-keyalg", "EC", "-validity", "30"]
        exported = ["-rfc", "-file", str(self.certificate)]
        for words in (["-genkeypair", *names], ["-exportcert", *exported]):
            subprocess.run([*tool, *words], check=True, capture_output=True, timeout=60)
