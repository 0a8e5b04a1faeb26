"""CrisisMMD's tweets as token ids: each once, tokenized once, by disaster."""

from pathlib import Path

import pytest
import torch

from fedapm.data import Dirichlet, Natural, Source, data_set
from fedapm.data.sets import tweets as module
from fedapm.data.sets.crisismmd import FILES, FOLDER, SPLIT
from tests.data.sets.test_crisismmd import HEADER, write
from tests.helpers.unit import refused

TEXTS = {
    "1": ("Flood water in the streets https://t.co/abc", "infrastructure_and_utility_damage", "floods"),
    "2": ("donate to the shelter", "rescue_volunteering_or_donation_effort", "floods"),
    "3": ("my new shoes", "not_humanitarian", "quake"),
    "4": ("flood", "other_relevant_information", "quake"),
    "5": ("RT @someone: Donate to the shelter https://t.co/xyz", "rescue_volunteering_or_donation_effort", "quake"),
}


def row(tweet: str, image: int, label: str | None = None) -> dict[str, str]:
    text, known, event = TEXTS[tweet]
    key = f"{tweet}_{image}"
    path = f"data_image/{event}/1_9_2017/{key}.jpg"
    fields = (event, tweet, key, text, path, "x", label or known, "vehicle_damage", "Negative")
    return dict(zip(HEADER, fields, strict=True))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / FOLDER / SPLIT).mkdir(parents=True)
    parts = [[row("1", 0), row("1", 1), row("2", 0)], [row("3", 0)], [row("1", 2), row("4", 0)]]
    for name, some in zip(FILES, parts, strict=True):
        write(tmp_path / FOLDER, name, some)
    return Source(tmp_path)


def test_each_tweet_is_there_once_with_its_tokens(source):
    pool = data_set("tweets").read(source)
    assert [pool.classes[k] for k in pool.targets] == [TEXTS[tweet][1] for tweet in "2314"]
    assert pool.owners.tolist() == ["floods", "quake", "floods", "quake"]
    ids, length = pool.inputs
    assert length.tolist() == [6, 5, 7, 3], "words with the marks at both ends, and no link"
    assert ids[:, 0].tolist() == [101] * 4, "BERT's mark of a beginning"
    assert all(ids[k, n - 1] == 102 and not ids[k, n:].any() for k, n in enumerate(length.tolist()))
    assert ids[2, 1] == ids[3, 1], "flood"


def test_words_that_are_there_twice_are_kept_once(source):
    write(source.root / FOLDER, FILES[0], [row("5", 0), row("1", 0), row("2", 0)])
    pool = data_set("tweets").read(source)
    assert pool.owners.tolist() == ["floods", "quake", "floods", "quake"], "as without the retweet"


def test_tokens_are_computed_once(source, monkeypatch):
    first = data_set("tweets").read(source)
    monkeypatch.setattr(module, "_tokenizer", lambda name: pytest.fail("tokenized again"))
    again = data_set("tweets-informative").read(source)
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert again.targets.tolist() == [1, 0, 1, 1]


def test_clients_are_disasters_or_drawn(source):
    tweets = data_set("tweets")
    natural = tweets.federation(source, Natural(None, 1), test_fraction=0.5, seed=0)
    assert [client.id for client in natural.clients] == ["floods", "quake"]
    assert len(tweets.federation(source, Dirichlet(2, 1.0, 2), test_fraction=0.5, seed=0)) == 2


def test_an_unknown_class_is_named_with_its_line(source):
    write(source.root / FOLDER, FILES[1], [row("3", 0, "not_humanitaria")])
    with refused("line 2", "label_text", "not_humanitarian"):
        data_set("tweets").read(source)


def test_a_tokenizer_that_no_package_has_is_refused(source):
    with refused("mobilebert", "minilm"):
        data_set("tweets").read(Source(source.root, text_encoder="mobilebert"))
