"""Certificates for tests, made with openssl. The names of the files are those that libnbd and QEMU look for."""

import os
from collections.abc import Iterable
from pathlib import Path

from .clients import need
from .command import run

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
# So much of a line of a secret must not be anywhere: less of it could be there by chance.
SECRET_LENGTH = 24


class Pki:
    """Authorities and certificates below `folder`, each in a folder of its own (`pki / name`)."""

    def __init__(self, folder: Path) -> None:
        need("openssl")
        self.folder = folder
        self.folder.mkdir(exist_ok=True)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def authority(self, name: str = "ca") -> Path:
        """Makes NAME/ca-cert.pem and NAME/ca-key.pem; returns the folder."""
        at = self / name
        at.mkdir()
        subject = ["-subj", f"/CN=test authority {name}", "-addext", "basicConstraints=critical,CA:TRUE"]
        files = ["-keyout", str(at / "ca-key.pem"), "-out", str(at / "ca-cert.pem")]
        run(["openssl", "req", "-x509", *NEW_KEY, "-days", "2", *subject, *files])
        return at

    def certificate(self, kind: str, name: str, *names: str, ca: str = "ca") -> Path:
        """Makes KIND-cert.pem and KIND-key.pem (`server` or `client`) and ca-cert.pem in folder NAME, which it returns.

        `name` is the common name, `names` are alternative names such as `DNS:localhost`."""
        at = self / name
        at.mkdir(exist_ok=True)
        key, request, extensions = at / f"{kind}-key.pem", at / "request.pem", at / "extensions"
        run(["openssl", "req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request])
        key.chmod(0o600)
        lines = [f"extendedKeyUsage={kind}Auth", *([f"subjectAltName={','.join(names)}"] if names else [])]
        extensions.write_text("\n".join(lines) + "\n")
        signer = ["-CA", str(self / ca / "ca-cert.pem"), "-CAkey", str(self / ca / "ca-key.pem"), "-CAcreateserial"]
        files = ["-in", str(request), "-extfile", str(extensions), "-out", str(at / f"{kind}-cert.pem")]
        run(["openssl", "x509", "-req", *signer, "-days", "2", *files])
        self.trust(name, ca)
        return at

    def trust(self, name: str, ca: str = "ca") -> Path:
        """The authority that whoever uses folder NAME trusts."""
        at = self / name
        at.mkdir(exist_ok=True)
        (at / "ca-cert.pem").write_bytes((self / ca / "ca-cert.pem").read_bytes())
        return at

    def section(self, name: str = "lan", *, server: str = "server", ca: str = "ca") -> str:
        """The section [tls.NAME] of a configuration."""
        at = self / server
        files = [f'cert_file = "{at}/server-cert.pem"', f'key_file = "{at}/server-key.pem"']
        return "\n".join([f"[tls.{name}]", *files, f'client_ca_file = "{self / ca}/ca-cert.pem"', ""])


def assert_no_secrets(secrets: Iterable[Path], texts: Iterable[str | bytes | Path]) -> None:
    """No line of these keys and tokens is in these texts and files."""
    found = {str(text) if isinstance(text, Path) else "an output": content(text) for text in texts}
    for secret in secrets:
        for line in secret.read_bytes().splitlines():
            if line and not line.startswith(b"-----"):
                for name, text in found.items():
                    assert line[:SECRET_LENGTH] not in text, f"a part of {secret} is in {name}"


def content(text: str | bytes | Path) -> bytes:
    if isinstance(text, Path):
        return text.read_bytes()
    return os.fsencode(text) if isinstance(text, str) else text


def keys(pki: Pki) -> list[Path]:
    """Every private key that was made there."""
    return sorted(pki.folder.glob("*/*-key.pem"))
