"""The ClientApp: Flower's messages in, the client's answers out."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapm.core.network import Loss
from fedapm.errors import FedapmError
from fedapm.flower.client.data import Loader
from fedapm.flower.client.handler import MessageHandler
from fedapm.flower.client.node import Node
from fedapm.flower.transport import codec
from fedapm.simulation.problem import Model


def make(data: Loader | None, model: Model | None, loss: Loss | None, state: Path | None) -> ClientApp:
    """An app that answers every kind of message the server sends."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            node = Node.read(context.node_config, state)
            note, tensors = codec.decode(message.content)
            reply, vectors = MessageHandler(node, data, model, loss).answer(note, tensors)
        except FedapmError as error:
            reply, vectors = {"protocol": codec.PROTOCOL, "refused": str(error)}, {}
        return Message(codec.records(reply, codec.block(vectors)), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    return app
