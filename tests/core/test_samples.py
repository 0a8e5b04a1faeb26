import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapm.core.samples import Samples


@given(n=st.integers(1, 60), size=st.integers(1, 70))
@settings(max_examples=80, deadline=None)
def test_an_epoch_is_every_sample_once_and_no_batch_is_a_lone_leftover(n, size):
    samples = Samples((torch.arange(n),), torch.arange(n))
    batches = list(samples.shuffled(size, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat([b.targets for b in batches]).tolist()) == list(range(n))
    sizes = [len(b) for b in batches]
    if size > 1 and n > 1:
        assert min(sizes) > 1
    assert max(sizes) <= size + 1
    assert all(s == size for s in sizes[:-1])
