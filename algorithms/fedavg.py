"""Federated averaging and its family."""

from __future__ import annotations

from typing import Literal

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Fraction, Outer, Rate, Share, Steps, Threshold
from relaxcomm.primitives import adagrad, adam, all_reduce, average, client_deltas, every_round, sgd, yogi


def fedavg(
    epochs: Steps = 1,
    fraction: Share = 1.0,
    clients: Steps | None = None,
    proximal: Threshold = 0.0,
    server: Literal["average", "sgd", "adagrad", "yogi", "adam"] = "average",
    server_lr: Rate = 1.0,
    *,
    server_momentum: Fraction = 0.9,
    tau: Rate = 1e-3,
) -> Algorithm:
    """Sampled clients train some epochs each, then the server takes the mean weighted by their samples.

    In each round `max(ceil(fraction K), 1)` of K clients start from w, train `epochs` epochs on their own
    data, and `w <- sum_k n_k w_k / sum_k n_k`. With another server, `delta = w - that mean` is a
    pseudo-gradient for it (FedOpt). The batches come from `engine.loader`: one iteration is one round, in
    which each worker plays its clients in turn, each with its own optimizer state. The clients are
    divided by `data: {partition: …}`.

    Args:
        epochs: local epochs of each client in a round.
        fraction: of the clients that are sampled in a round, in (0, 1].
        clients: K; None for one a worker.
        proximal: FedProx's mu, 0 or more: `mu (w_k - w)` is added to the gradients.
        server: "average"; or "sgd" with momentum, "adagrad", "yogi" or "adam" on the pseudo-gradient.
        server_lr: the server's learning rate; with "average" the step from w to the mean.
        server_momentum: of the servers that have one, in [0, 1).
        tau: of the adaptive servers, in the units of a delta.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.fedavg import fedavg
        >>> run = rehearse(fedavg(epochs=2, clients=6, fraction=0.5), epochs=3)
        >>> run.exchanges, run.replicas_equal
        (3, True)

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", AISTATS 2017; Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020;
        Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Differs from the papers: a client's optimizer state is kept from round to round; BatchNorm's
        statistics are those of the last client of each worker, averaged by the samples of all its clients.
    """
    servers: dict[str, Outer] = {
        "average": average() if server_lr == 1.0 else sgd(lr=server_lr),
        "sgd": sgd(lr=server_lr, momentum=server_momentum),
        "adagrad": adagrad(lr=server_lr, tau=tau),
        "yogi": yogi(lr=server_lr, momentum=server_momentum, tau=tau),
        "adam": adam(lr=server_lr, momentum=server_momentum, tau=tau),
    }
    rule = Rule(
        trigger=every_round(epochs=epochs, fraction=fraction, clients=clients),
        payload=client_deltas(proximal=proximal),
        exchange=all_reduce(),
        outer=servers[server],
    )
    return Algorithm((rule,), name="fedavg")
