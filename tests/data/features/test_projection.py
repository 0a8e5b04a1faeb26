"""Principal components: those of numpy, always with the same signs, fitted on what they were asked to be fitted on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedapm.data.features.projection import project


def correlated(count: int, seed: int = 0) -> torch.Tensor:
    stream = np.random.default_rng(seed)
    return torch.from_numpy(stream.normal(size=(count, 12)) * np.geomspace(4, 0.1, 12) @ stream.normal(size=(12, 12)))


def test_the_components_are_those_of_a_singular_value_decomposition() -> None:
    fitted, others = correlated(300), correlated(40)
    center = fitted.mean(0)
    _, values, vectors = np.linalg.svd((fitted - center).numpy(), full_matrices=False)
    expected = (others - center).numpy() @ vectors[:3].T / np.sqrt((values[:3] ** 2).sum() / 300 / 3)
    found = project(others, fitted, 3)
    assert found.dtype == torch.float32
    assert np.abs(found.numpy()) == pytest.approx(np.abs(expected), abs=1e-4)


def test_the_scale_is_one_for_all_components() -> None:
    fitted = correlated(500)
    found = project(fitted, fitted, 4).double()
    variances = found.var(0, correction=0)
    assert float(variances.mean()) == pytest.approx(1, abs=1e-3)
    assert (variances.diff() < 0).all()
    assert found.mean(0).abs().max() < 1e-4


def test_signs_do_not_depend_on_the_order_of_the_rows() -> None:
    fitted, others = correlated(200), correlated(30, seed=5)
    shuffled = fitted[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert torch.equal(project(others, fitted, 5), project(others, shuffled, 5))


def test_a_row_is_projected_by_itself_and_nothing_but_the_fitted_rows_matters() -> None:
    fitted, others = correlated(200), correlated(30, seed=5)
    assert torch.equal(project(others[:1], fitted, 5), project(others, fitted, 5)[:1])


def test_without_a_number_of_components_features_are_only_centered_and_scaled() -> None:
    fitted, others = correlated(200), correlated(30, seed=5)
    found = project(others, fitted, None).double()
    factor = (fitted - fitted.mean(0)).square().mean().sqrt()
    assert torch.allclose(found, (others - fitted.mean(0)) / factor, atol=1e-4)
