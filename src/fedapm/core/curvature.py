"""Curvature: spectral norms of the blocks of a client's Hessian, from Hessian-vector products.

The norm of ∇²_uu f_i at a point is how fast ∇_u f_i changes there when u moves, that of ∇²_uv f_i when v moves. The
Hessian itself is never formed. The vectors are those of power iteration, x, BᵀBx, (BᵀB)²x, …; the norm is taken over
all that they span (Golub and Kahan's bidiagonalization), which takes far fewer of them than the last one alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedapm.core.network import batch_size
from fedapm.core.objective import l2_gradient
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError

TOLERANCE = 1e-4
"""The iteration stops where two steps in a row change the norm by a smaller share."""
MOST_STEPS = 50
EXHAUSTED = 1e-6
"""A new vector that is a smaller share of the norm is rounding: those before it span all that the block can reach."""


class NotTwiceDifferentiable(FedapmError):
    """A network has no second derivatives that torch could compute."""


@dataclass(frozen=True)
class SpectralNorm:
    """The norm of a matrix as the iteration found it: never above the true one, up to rounding."""

    value: float
    steps: int
    converged: bool
    """Whether the last steps changed little; otherwise the true norm may be larger."""


class Hessian:
    """∇²f_i at a point, with its L2 term and prior, known by what it does to vectors.

    Args:
        task: The client's loss and data.
        at: The point: every parameter that is not frozen.
    """

    def __init__(self, task: LocalTask, at: Vec) -> None:
        self.task, self.at = task, at

    def apply(self, rows: Sequence[str], columns: Sequence[str], x: Vec) -> Vec:
        """∇²_{rows, columns} f_i · x, over all of the client's samples.

        Args:
            rows: The parameters of the result.
            columns: The parameters of x. They are those of the rows, or none of them.
            x: What the block is applied to.
        """
        samples, network = self.task.train, self.task.network
        network.load(self.at)
        names = tuple(dict.fromkeys([*rows, *columns]))
        parameters = dict(zip(names, network.trainable(names), strict=True))
        network.module.eval()
        sums = [torch.zeros_like(parameters[n]) for n in rows]
        with _twice_differentiable():
            for batch in samples.batches(batch_size(samples)):
                loss = network.loss(network.module(*batch.inputs), batch.targets)
                slope = _slope(loss, [parameters[n] for n in columns], [x[n] for n in columns])
                if slope.requires_grad:
                    wanted = [parameters[n] for n in rows]
                    product = torch.autograd.grad(slope, wanted, allow_unused=True, materialize_grads=True)
                    torch._foreach_add_(sums, product, alpha=len(batch) / len(samples))
        result = Vec(dict(zip(rows, sums, strict=True)))
        if set(rows) != set(columns):
            return result
        result = result + l2_gradient(self.task.decay(columns), x)
        prior = self.task.prior(columns)
        return result if prior is None else result + Vec({n: prior.curvature(n) * t for n, t in x.items()})

    def norm(self, rows: Sequence[str], columns: Sequence[str], stream: torch.Generator) -> SpectralNorm:
        """The spectral norm of a block.

        Args:
            rows: The parameters it has rows for.
            columns: The parameters it has columns for.
            stream: Draws the vector that the iteration starts from.

        Returns:
            For a diagonal block the largest magnitude of an eigenvalue, else the largest singular value.
        """
        v = _unit(self.at.only(columns).map(lambda t: _normal(t, stream)))
        u, beta = self.at.only(rows).zeros(), 0.0
        diagonal: list[float] = []
        above: list[float] = []
        found, calm = 0.0, 0
        for step in range(1, MOST_STEPS + 1):
            left = self.apply(rows, columns, v) - beta * u
            alpha = left.norm()
            if not math.isfinite(alpha):
                raise FedapmError("the curvature is not finite: the model has diverged.")
            diagonal.append(alpha)
            before, found = found, _bidiagonal_norm(diagonal, above)
            calm = calm + 1 if abs(found - before) <= TOLERANCE * found else 0
            if calm == 2 or alpha <= EXHAUSTED * found:
                return SpectralNorm(found, step, True)
            u = left / alpha
            right = self.apply(columns, rows, u) - alpha * v
            beta = right.norm()
            if beta <= EXHAUSTED * found:
                return SpectralNorm(found, step, True)
            v = right / beta
            above.append(beta)
        return SpectralNorm(found, MOST_STEPS, False)


def _bidiagonal_norm(diagonal: Sequence[float], above: Sequence[float]) -> float:
    """The largest singular value of a matrix that has nothing but a diagonal and the numbers above it."""
    matrix = np.diag(np.asarray(diagonal)) + np.diag(np.asarray(above), 1)
    return float(np.linalg.norm(matrix, 2))


def _slope(loss: Tensor, parameters: list[Tensor], x: list[Tensor]) -> Tensor:
    """⟨∇f, x⟩ as a function that can be differentiated once more."""
    if not loss.requires_grad:
        return loss
    gradient = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
    return torch.stack([(g * d).sum() for g, d in zip(gradient, x, strict=True)]).sum()


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Compute with kernels that have second derivatives; the fast ones of attention and recurrent layers have none."""
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
            yield
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        message = f"the curvature is not known, because the network cannot be differentiated twice ({reason})."
        raise NotTwiceDifferentiable(message) from None


def _normal(like: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=stream, dtype=like.dtype).to(like.device)


def _unit(x: Vec) -> Vec:
    return x / x.norm()
