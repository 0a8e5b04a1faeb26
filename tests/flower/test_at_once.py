"""Only so many messages under way at a time, for nodes that share a machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message, MessageType
from typer.testing import CliRunner

from fedapm.cli import flower as cli_flower
from fedapm.flower.local import app_folder
from fedapm.flower.transport import codec
from fedapm.flower.transport.transport import SLOW, Exchange
from tests.flower.cases import CLIENTS, Case, same
from tests.flower.grid import Carried, InProcessGrid


@dataclass
class CountingGrid(InProcessGrid):
    """Counts the messages that are on their way."""

    under_way: int = 0
    pushed: list[int] = field(default_factory=list)
    """How many were under way after each push."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        self.under_way += len(sent)
        self.pushed.append(self.under_way)
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(super().pull_messages(message_ids))
        self.under_way -= len(found)
        return found


def counting(folder, at_once: int | None) -> Case:
    case = Case.of(folder, engine={"rounds": 2, "fraction": 1.0}, flower={"at_once": at_once} if at_once else {})
    case.grid = CountingGrid(case.grid.app, case.grid.state, case.grid.clients)
    return case


def test_no_more_are_under_way_and_the_end_is_the_same(tmp_path):
    few, all_at_once = counting(tmp_path / "few", 2), counting(tmp_path / "all", None)
    few.serve(), all_at_once.serve()
    assert max(few.grid.pushed) == 2
    assert max(all_at_once.grid.pushed) == len(CLIENTS)
    assert same(few.saved().state.server, all_at_once.saved().state.server)
    assert not any(record["dropped"] for record in few.records())


def test_a_node_that_never_replies_holds_others_up_for_a_while_only(tmp_path):
    case = counting(tmp_path, 1)

    def fate(carried: Carried):
        return [] if carried.node == 100 else None

    case.grid.fate = fate
    link = case.grid.link()
    link.at_once = 1
    exchange = Exchange(link, MessageType.QUERY, "hello", 600.0, limit=0)
    hello = codec.records({"protocol": codec.PROTOCOL})
    assert exchange.send({100: hello, 101: hello}) == []
    assert exchange.waiting == {100, 101}
    exchange.receive()
    assert case.grid.pushed == [1]
    link.sleep(SLOW)
    exchange.receive()
    assert [reply.node for reply in exchange.receive()] == [101]
    assert exchange.waiting == {100}


def test_on_this_machine_it_follows_the_processors_unless_a_file_says_otherwise(tmp_path, monkeypatch):
    found = []

    class Stop(Exception):
        pass

    def submitted(folder, tables, out):
        found.append(tables.get("flower", {}).get("at_once"))
        raise Stop

    monkeypatch.setattr(app_folder, "write_app", submitted)
    monkeypatch.setattr(cli_flower, "_superlink", lambda *_: (None, tmp_path))
    config = tmp_path / "experiment.toml"
    config.write_text('[data]\nname = "digits"\nclients = 3\n')
    for more in ([], ["--set", "flower.at_once=1"], ["--superlink", "far"]):
        CliRunner().invoke(cli_flower.app, ["run", str(config), "--out", str(tmp_path / "run"), *more])
    assert found == [cli_flower.AT_ONCE, 1, None]
