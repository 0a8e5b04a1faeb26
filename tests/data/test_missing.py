"""Missing modalities: the clients that were drawn lack them, everybody else is left alone, and training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedapm
from fedapm import Federation, models
from fedapm.core.random import numpy_generator
from fedapm.data import IID
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings
from tests.helpers.unit import blob_clients, few, refused

QUICK: dict[str, Any] = {"rounds": 2, "fraction": 1.0, "batch_size": 8, "epochs": 2, "lr": 0.1}


def dealt(m: int, classes: int, **values: tuple[torch.Tensor, int]) -> Federation:
    """Samples with modalities, each with its values and their length, dealt out evenly to clients c0, c1, …"""
    tensors, lengths = zip(*values.values(), strict=True)
    count = len(tensors[0])
    targets = torch.arange(count) % classes
    parts = {f"c{k}": part for k, part in enumerate(IID(m)(targets.numpy(), numpy_generator(0, "partition")))}
    inputs = (*tensors, *(torch.full((count,), length) for length in lengths))
    return Federation.from_parts(inputs, targets, parts, name="both", modalities=tuple(values))


def sensors(m: int = 6, each: int = 12, time: int = 16) -> Federation:
    """Two sensors in which three activities differ."""
    stream = np.random.default_rng(0)
    wave = np.sin(np.arange(time) * (1 + (np.arange(m * each) % 3)[:, None, None]))
    acc, gyro = (torch.tensor(wave + 0.3 * stream.normal(size=(m * each, 3, time))).float() for _ in range(2))
    return dealt(m, 3, acc=(acc, time), gyro=(gyro, time))


def parts_of(federation: Federation, client: int) -> list[torch.Tensor]:
    """All inputs of a client, training first."""
    data = federation[client]
    return [*data.train.inputs, *data.test.inputs]


def test_exactly_the_named_clients_lack_exactly_that() -> None:
    whole = sensors()
    before = [[t.clone() for t in parts_of(whole, k)] for k in range(6)]
    found = whole.without({"gyro": [1, 4]})
    for k in range(6):
        assert found.has(k, "acc")
        assert found.has(k, "gyro") == (k not in (1, 4))
        for column, (now, was) in enumerate(zip(parts_of(found, k), before[k], strict=True)):
            gone = k in (1, 4) and column % 4 in (1, 3)
            assert torch.equal(now, torch.zeros_like(was) if gone else was)
        assert torch.equal(found[k].train.targets, whole[k].train.targets)
        assert all(torch.equal(a, b) for a, b in zip(parts_of(whole, k), before[k], strict=True)), (
            "not changed in place"
        )
    assert [c.id for c in found.clients] == [c.id for c in whole.clients]
    assert (found.name, found.modalities, found.shapes) == (whole.name, whole.modalities, whole.shapes)


def test_clients_may_lack_different_things() -> None:
    found = sensors().without({"gyro": [0, 2], "acc": [1]})
    assert [found.has(k, "acc") for k in range(6)] == [True, False, True, True, True, True]
    assert [found.has(k, "gyro") for k in range(6)] == [False, True, False, True, True, True]


def test_a_client_keeps_its_last_modality() -> None:
    with refused("client c1", "no modality left"):
        sensors().without({"gyro": [1], "acc": [1]})
    with refused("client c2", "no modality left"):
        sensors().without({"gyro": [2]}).without({"acc": [2]})


def test_an_unknown_modality_is_named() -> None:
    with refused("both", "'giro'", "did you mean 'gyro'"):
        sensors().without({"giro": [0]})
    with refused("blobs", "'image'", "none of its inputs can be missing"):
        blob_clients().without({"image": [0]})


shares = st.floats(0, 1)


@few
@given(shares, st.integers(0, 50))
def test_a_share_of_clients_is_drawn_by_the_data_seed(share: float, seed: int) -> None:
    clients, data = sensors(9), DataSettings(seed=seed, missing={"gyro": share})
    found = build.lacking(clients, data)
    assert list(found) == ["gyro"]
    assert len(set(found["gyro"])) == len(found["gyro"]) == round(share * 9)
    assert found["gyro"] == sorted(found["gyro"])
    assert all(0 <= k < 9 for k in found["gyro"])
    assert build.lacking(clients, data) == found


def test_another_seed_of_the_data_draws_other_clients() -> None:
    drawn = {tuple(build.lacking(sensors(9), DataSettings(seed=s, missing={"gyro": 0.5}))["gyro"]) for s in range(5)}
    assert len(drawn) > 1


@few
@given(shares, shares, st.integers(0, 20))
def test_shares_never_take_a_clients_last_modality(first: float, second: float, seed: int) -> None:
    clients, data = sensors(7), DataSettings(seed=seed, missing={"acc": first, "gyro": second})
    wanted = round(first * 7), round(second * 7)
    if sum(wanted) > 7:
        with refused("data.missing.gyro", "without any modality"):
            build.lacking(clients, data)
        return
    found = build.lacking(clients, data)
    assert (len(found["acc"]), len(found["gyro"])) == wanted
    assert not set(found["acc"]) & set(found["gyro"])
    made = clients.without(found)
    assert all(made.has(k, "acc") or made.has(k, "gyro") for k in range(7))


def test_clients_may_be_named_instead_of_drawn() -> None:
    assert build.lacking(sensors(), DataSettings(missing={"gyro": ["c4", "c0"]})) == {"gyro": [4, 0]}
    with refused("'c9'", "c0, c1"):
        build.lacking(sensors(), DataSettings(missing={"gyro": ["c9"]}))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with refused("data.missing.gyro", str(share), "between 0 and 1"):
        build.lacking(sensors(), DataSettings(missing={"gyro": share}))


def windows(root: Path, people: int = 6, each: int = 12) -> Path:
    """A data root with a few windows of each person, as MotionSense's."""
    stream = np.random.default_rng(1)
    count = people * each
    np.savez(
        root / "motionsense.npz",
        acc=stream.normal(size=(count, 3, 128)).astype(np.float32),
        gyro=stream.normal(size=(count, 3, 128)).astype(np.float32),
        subject=np.arange(count) % people + 1,
        activity=np.arange(count) // people % 3,
        activities=np.array(["wlk", "jog", "sit"]),
    )
    return root


def test_the_same_clients_lack_it_whatever_the_seed_of_the_run(tmp_path: Path) -> None:
    data = {"name": "motionsense", "root": str(windows(tmp_path)), "missing": {"gyro": 0.34}}

    def drawn(run_seed: int, data_seed: int = 0) -> list[str]:
        tables = {"data": data | {"seed": data_seed}, "engine": {"seed": run_seed}}
        found = build.plan(build.resolve(tables)).problem.federation
        return [c.id for k, c in enumerate(found.clients) if not found.has(k, "gyro")]

    first = drawn(0)
    assert len(first) == 2
    assert drawn(1) == drawn(2) == first
    assert any(drawn(0, seed) != first for seed in (1, 2, 3))


def moved(result: fedapm.Result, client: int, part: str) -> bool:
    """Whether a client's personal parameters in a part of the network are other than at the start.

    The proximal term holds them there, and takes a digit or so of rounding to do so.
    """
    state, start = result.state_dict(client), dict(result.spec.problem.start(0).v0)
    gaps = [float((state[name] - start[name]).abs().max()) for name in start if name.startswith(f"{part}.")]
    assert gaps, f"{part} is not personal"
    assert max(gaps) < 1e-6 or max(gaps) > 1e-4, "neither rounding nor training"
    return max(gaps) > 1e-4


def train(federation: Federation, model: str, **options: Any) -> fedapm.Result:
    make = models.factory(model, federation.classes, {}, federation.shapes)
    result = fedapm.train(federation, make, **(QUICK | options))
    assert np.isfinite(result.history[["train_loss", "test_loss", "accuracy"]].to_numpy(float)).all()
    assert result.per_client[["train_loss", "test_loss", "accuracy"]].notna().all(axis=None)
    return result


def test_sensors_are_learnt_from_where_a_third_of_the_clients_have_one() -> None:
    lacking = [1, 4]
    result = train(sensors().without({"gyro": lacking}), "har", preset="input", rounds=6, epochs=3, lr=0.3)
    assert result.history["train_loss"].iloc[-1] < 0.7 * result.history["train_loss"].iloc[0]
    assert [moved(result, k, "acc_conv") for k in range(6)] == [True] * 6
    assert [moved(result, k, "gyro_conv") for k in range(6)] == [k not in lacking for k in range(6)]


def test_a_sensor_nobody_has_leaves_its_shared_parameters_where_they_were() -> None:
    result = train(sensors(3).without({"gyro": [0, 1, 2]}), "har", algorithm="fedavg")
    start, now = result.spec.problem.u0, result.state.server.u
    # scores that are all shifted alike weigh the same, so their offset has no gradient in any case
    still = {name for name in start.without(["attention.score.bias"]) if torch.equal(now[name], start[name])}
    assert still == {name for name in start if name.startswith("gyro_")}


def test_what_a_missing_sensor_would_have_read_makes_no_difference() -> None:
    federation = sensors(3).without({"gyro": [0]})
    model = train(federation, "har", preset="split_input").model("c0")
    acc, gyro, acc_length, gyro_length = federation[0].test.inputs
    assert torch.equal(model(acc, gyro, acc_length, gyro_length), model(acc, gyro + 7.0, acc_length, gyro_length))
    assert not torch.equal(model(acc, gyro, acc_length, gyro_length), model(acc, gyro + 7.0, acc_length, acc_length))


def test_tweets_without_picture_or_without_text() -> None:
    stream = torch.Generator().manual_seed(0)
    image, text = torch.randn(48, 10, generator=stream).half(), torch.randn(48, 5, 6, generator=stream).half()
    federation = dealt(4, 2, image=(image, 1), text=(text, 5)).without({"image": [0], "text": [3]})
    result = train(federation, "image-text", preset="input", rounds=1)
    assert [moved(result, k, "image_fc") for k in range(4)] == [False, True, True, True]
    assert [moved(result, k, "text_gru") for k in range(4)] == [True, True, True, False]


def test_clips_without_video_or_without_sound() -> None:
    stream = torch.Generator().manual_seed(0)
    audio, video = torch.randn(48, 20, 8, generator=stream).half(), torch.randn(48, 4, 6, generator=stream).half()
    federation = dealt(4, 2, audio=(audio, 20), video=(video, 4)).without({"video": [1], "audio": [2]})
    result = train(federation, "mm-action", preset="input", rounds=1)
    assert [moved(result, k, "video_gru") for k in range(4)] == [True, False, True, True]
    assert [moved(result, k, "audio_conv") for k in range(4)] == [True, True, False, True]
    assert [moved(result, k, "audio_gru") for k in range(4)] == [True, True, False, True]
