"""Hostile messages on Flower: one client lies in every way there is to the server, and the server to its nodes.

A hostile reply must be refused by name and the run go on, ending bit for bit as if that client had been away in those
rounds; or, where it says nothing false, be taken as it is.
"""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from tests.flower.cases import CLIENTS, Case, dropped, same
from tests.flower.grid import Carried

from attacks.hostile import Change, bad_fields, bad_records, bad_tensors, mutations
from attacks.registry import attack
from attacks.tally import Outcome, Tally
from fedapm.core.messages import collect_messages
from fedapm.errors import FedapmError
from fedapm.flower.server.node_registry import NodeRegistry
from fedapm.flower.transport import codec
from fedapm.flower.transport.transport import NodeReply
from fedapm.runs.records import JsonLines

MOLE = 1
"""The position of the client that lies."""
BATCH = 60
"""Hostile replies in one run."""
SEED = 17
Attempt = tuple[str, Change]


@attack("Flower: replies of a hostile client", "messages")
def replies(tally: Tally, quick: bool) -> None:
    """Every reply of one client, from round to round, is a hostile one."""
    with tempfile.TemporaryDirectory() as folder:
        note, tensors = _honest(Path(folder) / "honest").answered()
        false = [*bad_fields(note), *bad_records(), *bad_tensors(tensors)]
        random.Random(SEED).shuffle(false)
        false = false[:BATCH] if quick else false
        for k in range(0, len(false), BATCH):
            _run(tally, Path(folder) / f"false-{k}", false[k : k + BATCH], exact=True)
        mutated = list(mutations(20 if quick else 300, SEED))
        for k in range(0, len(mutated), BATCH):
            _run(tally, Path(folder) / f"mutated-{k}", mutated[k : k + BATCH], exact=False)


@attack("Flower: answers of a hostile newcomer", "messages")
def answers(tally: Tally, quick: bool) -> None:
    """What a node says of itself and its data, before a run begins."""
    with tempfile.TemporaryDirectory() as folder:
        case = _case(Path(folder), 1)
        case.grid.keep = None
        case.serve()
        hello = next(carried for carried in case.grid.carried if "hello" in carried.asked)
        note, _ = hello.answered()
        for what, change in [*bad_fields(note), *bad_records(), *mutations(20 if quick else 200, SEED)]:
            registry = NodeRegistry(case.plan, note["run"])
            with collect_messages():
                try:
                    reply = _decoded(change(note, {}))
                    registry.register(reply, {reply.node: ""})
                except FedapmError:
                    tally.add(Outcome.REFUSED)
                    continue
                except Exception as error:
                    tally.add(Outcome.TRACEBACK, f"{what}: {_last(error)}")
                    continue
            tally.add(Outcome.SURVIVED if registry.nodes else Outcome.REFUSED)


@attack("Flower: broadcasts of a hostile server", "messages")
def broadcasts(tally: Tally, quick: bool) -> None:
    """What a server sends to a node: it must be refused, and nothing written for it."""
    with tempfile.TemporaryDirectory() as folder:
        carried = _honest(Path(folder) / "honest")
        case = _case(Path(folder) / "node", 1)
        note, tensors = codec.decode(carried.message.content)
        false = [*bad_fields(note, ("settings",)), *bad_records(), *bad_tensors(tensors)]
        false += mutations(20 if quick else 200, SEED)
        for k, (what, change) in enumerate(false[::20] if quick else false):
            state = Path(folder) / "state" / str(k)
            context = Context(1, 1, {"client-id": carried.client, "state-dir": str(state)}, RecordDict(), {})
            message = Message(change(note, tensors), 1, carried.message.metadata.message_type)
            try:
                with collect_messages():
                    reply, _ = codec.decode(case.grid.app(message, context).content)
            except Exception as error:
                tally.add(Outcome.TRACEBACK, f"{what}: {_last(error)}")
                continue
            written = [path.name for path in state.rglob("*.safetensors")] if state.is_dir() else []
            if "refused" not in reply:
                tally.add(Outcome.SURVIVED)
            elif len(str(reply["refused"]).splitlines()) != 1 or written:
                tally.add(Outcome.TRACEBACK, f"{what}: {reply['refused']!r}, and {written} was written")
            else:
                tally.add(Outcome.REFUSED)


def _case(folder: Path, rounds: int) -> Case:
    engine = {"rounds": rounds, "fraction": 1.0, "save_models": False}
    case = Case.of(folder, engine=engine, flower={"timeout": 5.0, "retries": 0})
    case.grid.keep = 1
    return case


def _honest(folder: Path) -> Carried:
    """An honest exchange with everything in it: scores, drift, a result."""
    case = _case(folder, 3)
    case.grid.keep = None
    case.serve()
    return next(c for c in case.grid.carried if c.trains == 3 and c.client == CLIENTS[MOLE])


def _run(tally: Tally, folder: Path, attempts: Sequence[Attempt], exact: bool) -> None:
    """One run in which a client's replies are hostile; the rounds before give it a good name."""
    start = 2
    case = _case(folder, start + len(attempts))

    def fate(carried: Carried) -> list[Message] | None:
        if carried.client != CLIENTS[MOLE] or carried.trains is None or carried.trains <= start:
            return None
        _, change = attempts[carried.trains - start - 1]
        carried.reply.content = change(*carried.answered())
        return [carried.reply]

    case.grid.fate = fate
    try:
        records = case.serve()
    except Exception as error:
        done = len(list(JsonLines(case.out / "rounds.jsonl")))
        what, kind = (
            attempts[max(done - start, 0)][0],
            Outcome.LOST if isinstance(error, FedapmError) else Outcome.TRACEBACK,
        )
        tally.add(kind, f"{what}: {_last(error)}")
        rest = [attempt for k, attempt in enumerate(attempts) if k != max(done - start, 0)]
        if rest:
            _run(tally, folder.with_name(f"{folder.name}+"), rest, exact)
        return
    named = {round for round, client, _ in case.events() if client == CLIENTS[MOLE]}
    absent, server = dropped(records), case.saved().state.server
    as_without = same(server, case.sequential(absent)[0].server) if exact else server.is_finite()
    for k, (what, _) in enumerate(attempts):
        round = start + 1 + k
        refused = MOLE in absent.get(round, ())
        if not as_without:
            tally.add(Outcome.DIFFERING, f"one of {len(attempts)} replies, perhaps: {what}")
        elif refused and round not in named:
            tally.add(Outcome.LOST, f"{what}: left out without a word")
        else:
            tally.add(Outcome.REFUSED if refused else Outcome.SURVIVED)
    if any(len(what) > 2000 or not what.isprintable() for _, _, what in case.events()):
        tally.add(Outcome.LOST, "an event is not one printable line")


def _decoded(content: RecordDict) -> NodeReply:
    try:
        return NodeReply(1, *codec.decode(content, 0))
    except FedapmError as error:
        return NodeReply(1, refused=str(error))


def _last(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
