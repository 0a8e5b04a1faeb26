"""The two apps of this experiment. For data or a network of your own, give them to the functions below."""

from pathlib import Path

from fedapm.flower import client_app, server_app

server = server_app(Path(__file__).with_name("experiment.toml"))
client = client_app(folder=Path(__file__).parent)
