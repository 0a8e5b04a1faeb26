"""MMActionClassifier: built as the paper says, with video or by ear alone, blind to padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedapm.core.split import SplitRule
from fedapm.models import MMActionClassifier
from tests.helpers.unit import few, refused
from tests.models.checks import (
    check_dropout,
    check_forward_steps,
    check_learns,
    check_many_clients_at_once,
    fillers,
    noise,
    padded,
    seeded,
    size,
)

CONVOLUTIONS = [f"audio_conv.conv{k}.{kind}" for k in (1, 2, 3) for kind in ("weight", "bias")]


def gru_names(modality: str) -> list[str]:
    return [f"{modality}_gru.{n}_l0" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def both(dropout: float = 0.0) -> MMActionClassifier:
    return MMActionClassifier(classes=3, audio_dim=6, video_dim=5, dropout=dropout)


def by_ear(dropout: float = 0.0) -> MMActionClassifier:
    return MMActionClassifier(classes=3, audio_dim=6, video_dim=0, dropout=dropout)


def test_parameters_are_counted_by_hand() -> None:
    convolutions = (80 * 32 * 5 + 32) + (32 * 64 * 5 + 64) + (64 * 128 * 5 + 128)
    audio_gru = 3 * 128 * 128 + 3 * 128 * 128 + 3 * 128 + 3 * 128
    video_gru = 3 * 128 * 1280 + 3 * 128 * 128 + 3 * 128 + 3 * 128
    attention = (128 * 512 + 512) + (512 * 6 + 6)
    classifier = 6 * 128 * 4 + 4
    assert size(MMActionClassifier(classes=4)) == convolutions + audio_gru + video_gru + attention + classifier
    assert size(MMActionClassifier(classes=4, video_dim=0)) == convolutions + audio_gru + attention + classifier


@pytest.mark.parametrize(
    ("network", "preset", "layers"),
    [
        (both(), "input", CONVOLUTIONS + gru_names("audio") + gru_names("video")),
        (by_ear(), "input", CONVOLUTIONS + gru_names("audio")),
        (both(), "output", ["fc.weight", "fc.bias"]),
        (by_ear(), "output", ["fc.weight", "fc.bias"]),
    ],
)
def test_a_preset_makes_the_papers_block_personal(network: MMActionClassifier, preset: str, layers: list[str]) -> None:
    assert list(SplitRule(preset=preset).apply(network).personal) == layers


@few
@given(
    st.lists(st.integers(0, 17), min_size=3, max_size=3),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.integers(0, 6),
    fillers,
    st.integers(0, 9),
)
def test_padding_never_changes_the_scores(
    sounds: list[int], frames: list[int], more: int, filler: float, seed: int
) -> None:
    network = seeded(both, seed)
    audio, video = noise(3, 17 + more, 6, seed=seed), noise(3, 4 + more, 5, seed=seed + 1)
    lengths = torch.tensor(sounds), torch.tensor(frames)
    scores = network(padded(audio, sounds, filler, 1), padded(video, frames, filler, 1), *lengths)
    assert torch.equal(scores, network(padded(audio, sounds, 0.5, 1), padded(video, frames, -0.5, 1), *lengths))
    assert bool(torch.isfinite(scores).all())
    for k, (a, v) in enumerate(zip(sounds, frames, strict=True)):
        # what is missing is one step of length 0
        parts = audio[k : k + 1, : max(a, 1)], video[k : k + 1, : max(v, 1)]
        assert_close(scores[k : k + 1], network(*parts, torch.tensor([a]), torch.tensor([v])))


@few
@given(st.lists(st.integers(0, 17), min_size=3, max_size=3), st.integers(0, 6), fillers, st.integers(0, 9))
def test_padding_never_changes_the_scores_by_ear(sounds: list[int], more: int, filler: float, seed: int) -> None:
    network = seeded(by_ear, seed)
    audio, lengths = noise(3, 17 + more, 6, seed=seed), torch.tensor(sounds)
    scores = network(padded(audio, sounds, filler, 1), lengths)
    assert torch.equal(scores, network(padded(audio, sounds, 0.5, 1), lengths))
    assert bool(torch.isfinite(scores).all())
    for k, length in enumerate(sounds):
        assert_close(scores[k : k + 1], network(audio[k : k + 1, : max(length, 1)], torch.tensor([length])))


def test_without_lengths_everything_is_there() -> None:
    network, blind = seeded(both), seeded(by_ear)
    audio, video = noise(2, 21, 6), noise(2, 4, 5)
    assert torch.equal(network(audio, video), network(audio, video, torch.tensor([21, 21]), torch.tensor([4, 4])))
    assert torch.equal(blind(audio), blind(audio, torch.tensor([21, 21])))


@pytest.mark.parametrize(("missing", "branch"), [(0, "audio_"), (1, "video_")])
def test_a_missing_modality_is_not_seen_and_not_trained(missing: int, branch: str) -> None:
    network = seeded(both)
    lengths = [torch.tensor([16, 13]), torch.tensor([4, 2])]
    lengths[missing] = torch.zeros(2, dtype=torch.int64)
    values = [noise(2, 16, 6), noise(2, 4, 5)]
    scores = network(*values, *lengths)
    values[missing] = values[missing] + 100
    assert torch.equal(scores, network(*values, *lengths))
    scores.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        if name != "attention.score.bias":  # the weights of a head do not change with it
            assert bool((parameter.grad == 0).all()) == name.startswith(branch), name


@pytest.mark.parametrize("make", [both, by_ear])
def test_a_sample_with_nothing_at_all_has_scores_and_trains_no_branch(make: type) -> None:
    network = seeded(make)
    nothing, nan = torch.zeros(2, dtype=torch.int64), float("nan")
    values = [torch.full((2, 16, 6), nan), torch.full((2, 4, 5), nan)][: 2 if make is both else 1]
    scores = network(*values, *[nothing] * len(values))
    assert bool(torch.isfinite(scores).all())
    scores.square().sum().backward()
    gradients = {n: p.grad for n, p in network.named_parameters()}
    assert all(bool((g == 0).all()) for n, g in gradients.items() if n != "fc.bias")
    assert bool(torch.isfinite(gradients["fc.bias"]).all())


def test_many_clients_at_once() -> None:
    sounds, frames = torch.tensor([[11, 0, 3, 8]] * 3), torch.tensor([[4, 2, 0, 1], [1, 1, 4, 4], [3, 0, 2, 4]])
    targets = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0], [1, 1, 0, 2]])
    audio, video = noise(3, 4, 11, 6), noise(3, 4, 4, 5)
    check_many_clients_at_once(both, (audio, video, sounds, frames), targets)
    check_many_clients_at_once(by_ear, (audio, sounds), targets)


def test_cut_at_a_preset_it_computes_the_same() -> None:
    audio, video, sounds, frames = noise(3, 16, 6), noise(3, 4, 5), torch.tensor([16, 0, 5]), torch.tensor([4, 2, 0])
    check_forward_steps(seeded(both), (audio, video, sounds, frames))
    check_forward_steps(seeded(both), (audio, video))
    check_forward_steps(seeded(by_ear), (audio, sounds))
    check_forward_steps(seeded(by_ear), (audio,))


def test_half_precision_inputs_are_computed_in_the_networks_own() -> None:
    network = both()
    audio, video = torch.randn(2, 16, 6).half(), torch.randn(2, 4, 5).half()
    assert network(audio, video).dtype == torch.float32
    assert torch.equal(network(audio, video), network(audio.float(), video.float()))


@pytest.mark.parametrize("make", [both, by_ear])
def test_it_learns(make: type) -> None:
    audio, sounds = noise(12, 16, 6), torch.tensor([16, 16, 9] * 4)
    seen = (noise(12, 4, 5), sounds, torch.tensor([4, 2, 0, 3] * 3)) if make is both else (sounds,)
    check_learns(seeded(make), (audio, *seen), torch.arange(12) % 3, lr=0.5, steps=60)


def test_dropout() -> None:
    check_dropout(both, (torch.randn(2, 16, 6), torch.randn(2, 4, 5)))


def test_the_wrong_number_of_modalities_is_refused() -> None:
    audio, lengths = torch.randn(2, 16, 6), torch.tensor([16, 4])
    with refused("needs video", "video_dim=0"):
        both()(audio)
    with refused("needs video", "video_dim=0"):
        both()(audio, lengths)
    with refused("audio alone", "video_dim"):
        by_ear()(audio, torch.randn(2, 4, 5), lengths, lengths)
