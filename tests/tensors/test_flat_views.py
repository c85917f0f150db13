"""Views of flat buffers."""

import pytest
import torch

from relaxcomm.tensors.flat_views import flat_views
from relaxcomm.tensors.memory_order import dense_strides


@pytest.mark.parametrize(
    "flat", [torch.randn(17, 2)[3:, 1], torch.ones(()).expand(14)], ids=["column", "one"]
)
def test_views_heed_the_strides_of_what_they_are_views_of(flat):
    tensors = [torch.zeros(2), torch.zeros(3, 2).t(), torch.zeros(3, 4)[:, ::2]]
    places = [(begin, one.shape, dense_strides(one)) for begin, one in zip((0, 2, 8), tensors, strict=True)]
    views = flat_views(flat, places)
    assert [view.shape for view in views] == [one.shape for one in tensors]
    for view, same in zip(views, flat_views(flat.contiguous(), places), strict=True):
        assert torch.equal(view, same)
