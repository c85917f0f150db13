"""Federated averaging and its family."""

from __future__ import annotations

from typing import Literal

from relaxcomm import Algorithm, CompositionError, Rule
from relaxcomm.plugin import Fraction, Outer, Rate, Share, Steps, Threshold
from relaxcomm.primitives import adagrad, adam, all_reduce, average, client_deltas, every_round, sgd, yogi

_USERS = {"server_momentum": ("sgd", "yogi", "adam"), "tau": ("adagrad", "yogi", "adam")}
"""The servers that have a parameter."""


def fedavg(
    epochs: Steps = 1,
    fraction: Share = 1.0,
    clients: Steps | None = None,
    proximal: Threshold = 0.0,
    server: Literal["average", "sgd", "adagrad", "yogi", "adam"] = "average",
    server_lr: Rate = 1.0,
    *,
    server_momentum: Fraction | None = None,
    tau: Rate | None = None,
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
        server_momentum: of "sgd", "yogi" and "adam", in [0, 1); None for 0.9.
        tau: of "adagrad", "yogi" and "adam", in the units of a delta; None for 0.001.

    Returns: the algorithm.

    Raises: CompositionError for a server_momentum or a tau that the server does not have.

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
    given = {"server_momentum": server_momentum, "tau": tau}
    for name, users in _USERS.items():
        if given[name] is not None and server not in users:
            raise CompositionError(
                f"fedavg: server {server!r} has no {name}, and {given[name]!r} is given; leave it out, or "
                f"use one of the servers {', '.join(users)}"
            )
    momentum = 0.9 if server_momentum is None else server_momentum
    tau = 1e-3 if tau is None else tau
    servers: dict[str, Outer] = {
        "average": average() if server_lr == 1.0 else sgd(lr=server_lr),
        "sgd": sgd(lr=server_lr, momentum=momentum),
        "adagrad": adagrad(lr=server_lr, tau=tau),
        "yogi": yogi(lr=server_lr, momentum=momentum, tau=tau),
        "adam": adam(lr=server_lr, momentum=momentum, tau=tau),
    }
    rule = Rule(
        trigger=every_round(epochs=epochs, fraction=fraction, clients=clients),
        payload=client_deltas(proximal=proximal),
        exchange=all_reduce(),
        outer=servers[server],
    )
    return Algorithm((rule,), name="fedavg")
