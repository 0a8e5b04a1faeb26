"""Certificates, keys and processes of a federation on one machine."""

import os
import socket
import ssl
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from fedapm.flower.local import processes
from fedapm.flower.local.certificates import write_certificates, write_key


def test_certificates_are_good_for_this_machine_and_no_other(tmp_path):
    write_certificates(tmp_path / "mine")
    write_certificates(tmp_path / "other")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "mine" / "server.pem", tmp_path / "mine" / "server.key")

    def greet(authority: Path, name: str) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        ours, theirs = socket.socketpair()

        def answer() -> None:
            try:
                server.wrap_socket(theirs, server_side=True).close()
            except (ssl.SSLError, OSError):
                theirs.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            context.wrap_socket(ours, server_hostname=name).close()
        finally:
            ours.close()
            thread.join()

    greet(tmp_path / "mine" / "ca.crt", "localhost")
    greet(tmp_path / "mine" / "ca.crt", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tmp_path / "mine" / "ca.crt", "example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(tmp_path / "other" / "ca.crt", "localhost")
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in (tmp_path / "mine").iterdir())


def test_keys_are_private_and_of_the_kind_flower_takes(tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    write_key(tmp_path / "keys" / "node")
    private = load_ssh_private_key((tmp_path / "keys" / "node").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "keys" / "node.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert stat.S_IMODE((tmp_path / "keys" / "node").stat().st_mode) == 0o600


def test_a_process_is_stopped_with_all_it_started(tmp_path):
    child = "import time; time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    home = os.environ | {"FLWR_HOME": str(tmp_path / "home")}
    made = processes.start("sleeper", [sys.executable, "-c", parent], tmp_path / "log", home)
    while not (family := processes.descendants(made.pid)):
        assert made.alive
        time.sleep(0.05)
    assert processes.Process.from_json(made.to_json()) == made
    assert made.alive
    assert not processes.Process(made.name, made.pid, "another time").alive
    assert {p.pid for p in processes.at_home(tmp_path)} == {made.pid, family[0].pid}
    assert processes.at_home(tmp_path / "elsewhere") == []
    assert processes.stop([made]) == []
    assert processes.at_home(tmp_path) == []
    assert not made.alive
    assert processes.started(family[0].pid) is None
    assert processes.stop([made]) == []
