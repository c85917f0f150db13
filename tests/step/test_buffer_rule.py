"""What averages buffers beside a rule, where a plug-in's payload says so itself."""

from dataclasses import replace

import pytest
import torch

from relaxcomm import Algorithm, PluginError, Rule, attach, simulate
from relaxcomm.plugin import frozen
from relaxcomm.primitives import all_reduce, parameters


@frozen
class remembered(parameters):
    """Buffers, with a slot that the rule's payload does not have."""

    facts = replace(parameters.facts, slots={"last": "fresh"})

    def init(self, bucket):
        return {"last": bucket.zeros()}


@frozen
class with_memory(parameters):
    """Parameters, whose buffers are to keep something."""

    facts = parameters.facts

    def for_buffers(self):
        return remembered()


def test_what_averages_buffers_keeps_nothing_of_its_own():
    algorithm = Algorithm((Rule(payload=with_memory(), exchange=all_reduce()),))

    def rank(group):
        model = torch.nn.BatchNorm1d(3)
        with pytest.raises(PluginError, match=r"beside with_memory\(\) and keeps \['last'\], but"):
            attach(model, torch.optim.SGD(model.parameters()), {"algorithm": algorithm}, process_group=group)

    simulate(rank, 2)
