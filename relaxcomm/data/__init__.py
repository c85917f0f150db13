"""Sharing a data set out over the workers: partitions, samplers, loaders."""

from relaxcomm.data.clients import ClientSampler, RoundPlan
from relaxcomm.data.injection import Injection
from relaxcomm.data.loader import ClientLoader, ShareLoader
from relaxcomm.data.loader_options import check_map_style
from relaxcomm.data.partitions import Partition, by_label, dirichlet, disjoint, iid, labels_of, seldp
from relaxcomm.data.position import Progress
from relaxcomm.data.sampler import ShareSampler
from relaxcomm.data.sharing import make_loader
from relaxcomm.data.splitting import num_samples, split_batch

__all__ = [
    "ClientLoader",
    "ClientSampler",
    "Injection",
    "Partition",
    "Progress",
    "RoundPlan",
    "ShareLoader",
    "ShareSampler",
    "by_label",
    "check_map_style",
    "dirichlet",
    "disjoint",
    "iid",
    "labels_of",
    "make_loader",
    "num_samples",
    "seldp",
    "split_batch",
]
