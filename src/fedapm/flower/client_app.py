"""The ClientApp: Flower's messages in, the client's answers out."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapm.engine.problem import Model
from fedapm.errors import FedapmError
from fedapm.flower import wire
from fedapm.flower.client import Client
from fedapm.flower.data import Loader
from fedapm.flower.node import Node
from fedapm.network import Loss


def make(data: Loader | None, model: Model | None, loss: Loss | None, state: Path | None) -> ClientApp:
    """An app that answers every kind of message the server sends."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            node = Node.read(context.node_config, state)
            note, tensors = wire.decode(message.content)
            reply, vectors = Client(node, data, model, loss).answer(note, tensors)
        except FedapmError as error:
            reply, vectors = {"protocol": wire.PROTOCOL, "refused": str(error)}, {}
        return Message(wire.records(reply, wire.block(vectors)), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    return app
