"""What Lightning cannot honour: numbers of batches that part in mid training, frozen backbones."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch.callbacks import BackboneFinetuning, ModelPruning
from torch.utils.data import DataLoader

from benchmarks.ports import free_port
from tests.integrations.lightning_runs import SIZE, Net, fit, flat, on_ranks, samples
from tests.ranks import RankError, launch_script

pytestmark = [pytest.mark.ranks, pytest.mark.integrations]


class Reloading(Net):
    """The last rank has a batch less from its second epoch on."""

    def train_dataloader(self):
        is_short = self.trainer.current_epoch and self.global_rank == SIZE - 1
        return DataLoader(samples(16 if is_short else 20), batch_size=4)


def reloading(rank):
    options = {"reload_dataloaders_every_n_epochs": 1, "use_distributed_sampler": False}
    fit(Reloading(), {"name": "bsp"}, limit_val_batches=0, **options)


def errors_of(scenario, *args):
    with pytest.raises(RankError) as error:
        on_ranks(scenario, *args)
    assert len(error.value.errors) == SIZE
    return [text for _, text in error.value.errors.values()]


def test_loaders_that_are_made_anew_are_counted_anew():
    assert all("have 5, 5, 4 training batches" in text for text in errors_of(reloading))


SCRIPT = """
import sys
from torch.utils.data import DataLoader, IterableDataset
from relaxcomm.integrations.lightning import RelaxcommStrategy
from tests.integrations.lightning_runs import Net, fit, samples

class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        return (samples()[index] for index in range(self.count))

class Streaming(Net):
    def train_dataloader(self):
        return DataLoader(Stream(28 if self.global_rank == int(sys.argv[1]) else 20), batch_size=4)

fit(Streaming(), RelaxcommStrategy({"algorithm": "local_sgd", "timeout_seconds": 5}))
"""


@pytest.mark.parametrize("longest", ["0", "1"])
def test_streams_of_different_lengths_end_in_an_error(longest):
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    every = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    every |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for done in launch_script(
        SCRIPT, 2, 150, arguments=[longest], environments=[every | one for one in places]
    ):
        assert done.returncode
        assert "batches, of which all need as many" in done.stderr


class Backbone(Net):
    """Its first layer is called as the callback has it."""

    @property
    def backbone(self):
        return self.net[0]


def finetuning(rank):
    fit(Backbone(), {"name": "bsp"}, callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=1)])


class Unfreezing(Net):
    """Does by itself what the callback would."""

    def on_train_start(self):
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)


def unfreezing(rank):
    net = Unfreezing()
    first = net.net[0].weight.detach().clone()
    fit(net, {"name": "bsp"})
    return torch.equal(net.net[0].weight, first), flat(net)


def test_a_callback_that_unfreezes_is_refused_at_once():
    texts = errors_of(finetuning)
    assert all("freeze in on_train_start and unfreeze in on_train_epoch_start" in text for text in texts)


def pruning(rank, algorithm):
    net = Net()
    pruned = ModelPruning("l1_unstructured", [(net.net[0], "weight")], amount=0.3)
    fit(net, algorithm, callbacks=[pruned])
    return net.net[0].weight == 0


@pytest.mark.parametrize("name", ["local_sgd", "auto"])
def test_masks_of_replicas_that_may_differ_are_refused(name):
    texts = errors_of(pruning, {"name": name})
    assert all(f"with {name} replicas may differ, so that masks would" in text for text in texts)


def test_masks_of_equal_replicas_are_equal():
    results = on_ranks(pruning, {"name": "bsp"})
    for zeros in results:
        assert zeros.any()
        assert torch.equal(zeros, results[0])


def test_freezing_as_the_refusal_advises():
    results = on_ranks(unfreezing)
    for is_frozen, end in results:
        assert not is_frozen
        assert torch.equal(end, results[0][1])
