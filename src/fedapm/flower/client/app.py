"""The ClientApp: decodes Flower's messages and encodes the client's replies."""

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


def make(
    data: Loader | None, model: Model | None, loss: Loss | None, state: Path | None, folder: Path | None = None
) -> ClientApp:
    """Make an app that answers every type of message the server sends."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            node = Node.from_config(context.node_config, state)
            request, tensors = codec.decode(message.content)
            reply, upload = MessageHandler(node, data, model, loss, folder).answer(request, tensors)
        except FedapmError as error:
            reply, upload = {"protocol": codec.PROTOCOL, "refused": str(error)}, {}
        return Message(codec.records(reply, codec.block(upload)), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    return app
