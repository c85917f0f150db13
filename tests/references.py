"""Single-process references: N simulated workers, NumPy arithmetic, nothing from relaxcomm.

A worker is a plain model with a plain optimizer. Parameters and gradients of all workers are
matrices `[workers, d]` of float64; each algorithm is a loop that a reader can hold against its paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Matrix = NDArray[np.float64]
History = list[Matrix]


class Workers:
    """N models with their optimizers and losses, trained in turn in this process.

    Args:
        models: one a worker, equal at the start.
        optimizers: one a worker.
        loss: `loss(model, step, worker)`.
        decay: factor on every learning rate after each update, as ExponentialLR applies it.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        loss: Callable[[nn.Module, int, int], torch.Tensor],
        decay: float = 1.0,
    ) -> None:
        self.models, self.optimizers, self.loss, self.decay = models, optimizers, loss, decay
        self.fired = 0  # steps in which a reference exchanged, for those that choose
        self.trained = [[p for p in model.parameters() if p.requires_grad] for model in models]

    @property
    def parameters(self) -> Matrix:
        """All parameters, a row for each worker."""
        return np.stack([flatten(parameters) for parameters in self.trained])

    @parameters.setter
    def parameters(self, matrix: Matrix) -> None:
        for row, parameters in zip(np.broadcast_to(matrix, self.parameters.shape), self.trained, strict=True):
            for parameter, values in zip(parameters, split(row, parameters), strict=True):
                parameter.data.copy_(torch.from_numpy(values))

    @property
    def learning_rates(self) -> Matrix:
        """The current learning rate of every parameter entry, `[d]`."""
        rates = {id(p): group["lr"] for group in self.optimizers[0].param_groups for p in group["params"]}
        return np.concatenate([np.full(p.numel(), rates[id(p)]) for p in self.trained[0]])

    def gradients(self, step: int) -> Matrix:
        """Every worker's own gradient at its own parameters."""
        rows = []
        for worker, (model, parameters) in enumerate(zip(self.models, self.trained, strict=True)):
            loss = self.loss(model, step, worker)
            rows.append(flatten(torch.autograd.grad(loss, parameters)))
        return np.stack(rows)

    def update(self, gradients: Matrix) -> None:
        """One optimizer step of every worker with the given gradients, `[d]` or `[workers, d]`."""
        for row, parameters, optimizer in zip(
            np.broadcast_to(gradients, self.parameters.shape), self.trained, self.optimizers, strict=True
        ):
            for parameter, values in zip(parameters, split(row, parameters), strict=True):
                parameter.grad = torch.from_numpy(values).to(parameter.dtype)
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= self.decay


def flatten(tensors: Sequence[torch.Tensor]) -> Matrix:
    """One float64 vector of all entries."""
    return np.concatenate([tensor.detach().double().reshape(-1).numpy() for tensor in tensors])


def split(row: Matrix, like: Sequence[torch.Tensor]) -> Iterator[Matrix]:
    """Cut a vector into arrays of the shapes of `like`."""
    start = 0
    for tensor in like:
        yield row[start : start + tensor.numel()].reshape(tuple(tensor.shape)).copy()
        start += tensor.numel()


def finish(workers: Workers, history: History) -> History:
    """What close() does to replicas that differ: the mean of the parameters."""
    workers.parameters = workers.parameters.mean(axis=0)
    return [*history, workers.parameters]


def bsp(workers: Workers, steps: int) -> History:
    """Every step: the mean gradient."""
    history = []
    for step in range(steps):
        workers.update(workers.gradients(step).mean(axis=0))
        history.append(workers.parameters)
    return finish(workers, history)


def local_sgd(workers: Workers, steps: int, period: int) -> History:
    """After every `period` local steps: the mean of the parameters."""
    return post_local_sgd(workers, steps, period, after=0)


def post_local_sgd(workers: Workers, steps: int, period: int, after: int) -> History:
    """BSP for `after` steps, local SGD from there."""
    history = []
    for step in range(steps):
        gradients = workers.gradients(step)
        workers.update(gradients.mean(axis=0) if step < after else gradients)
        if step >= after and (step - after + 1) % period == 0:
            workers.parameters = workers.parameters.mean(axis=0)
        history.append(workers.parameters)
    return finish(workers, history)


def selsync(
    workers: Workers,
    steps: int,
    threshold: float,
    window: int = 25,
    smoothing: float = 0.16,
    needed: float = 1,
    aggregate: str = "parameters",
    delay: int = 0,
    vote_delay: int = 0,
) -> History:
    """SelSync: each worker's EWMA of ||g||^2; all exchange when at least `needed` see it change.

    A mean that is a step late reaches the parameters just before the next update, which keeps what was
    sent apart: p += mean - sent. Votes that are late decide so many steps later; the first steps exchange.
    """
    size, alpha = len(workers.models), smoothing
    averages: list[float] = []
    sent = None
    history, decisions = [], [True] * vote_delay
    for step in range(steps):
        gradients = workers.gradients(step)
        squares = [float(row @ row) for row in gradients]
        if step == 0:
            averages, flags = squares, size
        else:
            now = [(1 - alpha) * old + alpha * new for old, new in zip(averages, squares, strict=True)]
            changes = [abs(b - a) / a for a, b in zip(averages, now, strict=True)]
            averages, flags = now, sum(change >= threshold for change in changes)
        decisions.append(step < window or flags >= needed)
        fires = decisions[step]
        if aggregate == "gradients" and fires:
            gradients = np.broadcast_to(gradients.mean(axis=0), gradients.shape)
        if sent is not None:
            workers.parameters = workers.parameters + sent.mean(axis=0) - sent
            sent = None
        workers.update(gradients)
        if aggregate == "parameters" and fires and delay:
            sent = workers.parameters
        elif aggregate == "parameters" and fires:
            workers.parameters = workers.parameters.mean(axis=0)
        workers.fired += fires
        history.append(workers.parameters)
    return finish(workers, history)


def d_psgd(workers: Workers, steps: int, matrices: Sequence[Matrix]) -> History:
    """D-PSGD (Lian et al. 2017): x ← W x - the local update at x; nothing to mix at first."""
    history = []
    for step in range(steps):
        before = workers.parameters
        gradients = workers.gradients(step)
        if step:
            workers.parameters = matrices[(step - 1) % len(matrices)] @ before
        workers.update(gradients)
        history.append(workers.parameters)
    return finish(workers, history)


def hierarchical_local_sgd(
    workers: Workers, steps: int, period: int, groups: Sequence[Sequence[int]]
) -> History:
    """Every step the mean gradient of each group; after every `period` steps the mean of all parameters."""
    history = []
    for step in range(steps):
        gradients = workers.gradients(step)
        for group in groups:
            gradients[list(group)] = gradients[list(group)].mean(axis=0)
        workers.update(gradients)
        if (step + 1) % period == 0:
            workers.parameters = workers.parameters.mean(axis=0)
        history.append(workers.parameters)
    return finish(workers, history)


def sparse_sgd(
    workers: Workers,
    steps: int,
    select: Callable[[Matrix, int, int], Matrix],
    places: Sequence[Matrix],
    momentum: float | None = None,
) -> History:
    """Each bucket's selected entries of u = g + e (or of DGC's gathered momentum), averaged.

    `select(u, step, bucket)` is a mask; `places` are each bucket's indices into the vector of all
    parameters, in the bucket's order.
    """
    kept = np.zeros_like(workers.parameters)
    velocity = np.zeros_like(kept)
    history = []
    for step in range(steps):
        gradients = workers.gradients(step)
        if momentum is not None:
            velocity = momentum * velocity + gradients
            gradients = velocity
        total = kept + gradients
        masks = np.zeros_like(total, dtype=bool)
        for worker, row in enumerate(total):
            for bucket, indices in enumerate(places):
                masks[worker, indices] = select(row[indices], step, bucket)
        kept, velocity = np.where(masks, 0, total), np.where(masks, 0, velocity)
        workers.update(np.where(masks, total, 0).mean(axis=0))
        history.append(workers.parameters)
    return finish(workers, history)


def coded_sgd(
    workers: Workers,
    steps: int,
    combine: Callable[[Matrix, int, int], Matrix],
    places: Sequence[Matrix],
) -> History:
    """Each bucket's gradients become `combine(rows, step, bucket)`, `[workers, n]` to `[n]`.

    `places` are each bucket's indices into the vector of all parameters, in the bucket's order.
    """
    history = []
    for step in range(steps):
        gradients = workers.gradients(step)
        result = np.zeros_like(gradients[0])
        for bucket, indices in enumerate(places):
            result[indices] = combine(gradients[:, indices], step, bucket)
        workers.update(result)
        history.append(workers.parameters)
    return finish(workers, history)


def scattered(
    rows: Matrix, code: Callable[[Matrix, object], Matrix], second: Callable[[Matrix, object], Matrix]
) -> Matrix:
    """Worker m averages the m-th piece of all that is coded, and the mean is coded again.

    `code(x, who)` and `second(x, who)` decode what they code; `who` tells the coders apart.
    """
    size = len(rows)
    cuts = [min(rows.shape[1], -(-rows.shape[1] // size) * index) for index in range(size + 1)]
    means = []
    for piece, (start, stop) in enumerate(itertools.pairwise(cuts)):
        coded = [code(row[start:stop], (worker, piece)) for worker, row in enumerate(rows)]
        means.append(second(np.mean(coded, axis=0), piece))
    return np.concatenate(means)


def slowmo(workers: Workers, steps: int, period: int, lr: float, momentum: float) -> History:
    """SlowMo (Wang et al. 2020): x̄ = mean, u ← beta u + (x0 - x̄)/gamma, x0 ← x0 - alpha gamma u."""
    history = []
    outer = workers.parameters[0]
    slow = np.zeros_like(outer)
    for step in range(steps):
        gamma = workers.learning_rates
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            slow = momentum * slow + (outer - workers.parameters.mean(axis=0)) / gamma
            outer = outer - lr * gamma * slow
            workers.parameters = outer
        history.append(workers.parameters)
    return finish(workers, history)


def diloco(workers: Workers, steps: int, period: int, lr: float, momentum: float) -> History:
    """DiLoCo: torch's own Nesterov SGD on the mean of θ₀ - θ_H."""
    history = []
    outer = torch.from_numpy(workers.parameters[0].copy()).requires_grad_()
    optimizer = torch.optim.SGD([outer], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            outer.grad = outer.detach() - torch.from_numpy(workers.parameters.mean(axis=0))
            optimizer.step()
            workers.parameters = outer.detach().numpy().copy()
        history.append(workers.parameters)
    return finish(workers, history)


def delayed_gradients(workers: Workers, steps: int, delay: int) -> History:
    """Step t applies the mean gradient of step t - delay, zero at first; close applies the rest in order."""
    history: History = []
    waiting = [np.zeros_like(workers.parameters[0])] * delay
    for step in range(steps):
        waiting.append(workers.gradients(step).mean(axis=0))
        workers.update(waiting.pop(0))
        history.append(workers.parameters)
    for gradient in waiting[-steps:]:  # not the zeros that stood in for gradients
        workers.update(gradient)
    return finish(workers, history)


def late_average(
    workers: Workers, steps: int, period: int, delay: int, merge: float | None = None
) -> History:
    """The mean of step t reaches the parameters just before the update of step t + delay.

    The progress made meanwhile is kept (p += mean - own snapshot), or, with `merge`, mixed:
    p = (1 - merge)·mean + merge·p.
    """
    history: History = []
    flights: list[tuple[int, Matrix, Matrix]] = []

    def land(now: int) -> None:
        while flights and flights[0][0] <= now:
            _, mean, snapshot = flights.pop(0)
            current = workers.parameters
            if merge is None:
                workers.parameters = current + mean - snapshot
            else:
                workers.parameters = (1 - merge) * mean + merge * current

    for step in range(steps):
        gradients = workers.gradients(step)  # taken before the late result is written
        land(step)
        workers.update(gradients)
        if (step + 1) % period == 0:
            flights.append((step + delay, workers.parameters.mean(axis=0), workers.parameters))
            if delay == 0:
                land(step)
        history.append(workers.parameters)
    land(steps + delay)
    return finish(workers, history)


def late_coded_average(
    workers: Workers,
    steps: int,
    period: int,
    delay: int,
    combine: Callable[[Matrix], Matrix],
    places: Sequence[Matrix],
) -> History:
    """Local SGD whose workers send how far they have come from the last average a: a <- a + combine(w - a).

    It reaches the parameters just before the update `delay` steps later: w += a - sent. `places` are each
    bucket's indices into the vector of all parameters, in the bucket's order.
    """
    history: History = []
    average = workers.parameters[0]
    sent, due = workers.parameters, -1
    for step in range(steps + delay):
        if step < steps:
            gradients = workers.gradients(step)
        if step == due:
            workers.parameters = workers.parameters + average - sent
        if step >= steps:
            continue
        workers.update(gradients)
        if (step + 1) % period == 0:
            sent, due = workers.parameters, step + delay
            moved = sent - average
            average = average.copy()
            for indices in places:
                average[indices] += combine(moved[:, indices])
            if delay == 0:
                workers.parameters = average
        history.append(workers.parameters)
    return finish(workers, history)


def late_nesterov(
    workers: Workers, steps: int, period: int, delay: int, lr: float, momentum: float, merge: float
) -> History:
    """Streaming DiLoCo with one fragment: θ = (1 - alpha)·θ_global + alpha·θ_local, `delay` steps late."""
    history: History = []
    outer = workers.parameters[0]
    velocity = np.zeros_like(outer)
    due = -1
    for step in range(steps):
        gradients = workers.gradients(step)
        if step == due:
            workers.parameters = (1 - merge) * outer + merge * workers.parameters
        workers.update(gradients)
        if (step + 1) % period == 0:
            delta = outer - workers.parameters.mean(axis=0)
            velocity = momentum * velocity + delta
            outer = outer - lr * (delta + momentum * velocity)
            due = step + delay
        history.append(workers.parameters)
    if due >= steps:
        workers.parameters = (1 - merge) * outer + merge * workers.parameters
    return finish(workers, history)


def merged_nesterov(
    workers: Workers, steps: int, period: int, lr: float, momentum: float, merge: float
) -> History:
    """Outer Nesterov steps of which every worker takes 1 - alpha, keeping alpha of its own parameters."""
    history = []
    outer = workers.parameters[0]
    velocity = np.zeros_like(outer)
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            delta = outer - workers.parameters.mean(axis=0)
            velocity = momentum * velocity + delta
            outer = outer - lr * (delta + momentum * velocity)
            workers.parameters = (1 - merge) * outer + merge * workers.parameters
        history.append(workers.parameters)
    return finish(workers, history)


def gradients_and_deltas(workers: Workers, steps: int, period: int, lr: float, momentum: float) -> History:
    """The mean gradient every step, and an outer Nesterov step every `period` steps."""
    history = []
    outer = workers.parameters[0]
    velocity = np.zeros_like(outer)
    for step in range(steps):
        workers.update(workers.gradients(step).mean(axis=0))
        if (step + 1) % period == 0:
            delta = outer - workers.parameters.mean(axis=0)
            velocity = momentum * velocity + delta
            outer = outer - lr * (delta + momentum * velocity)
            workers.parameters = outer
        history.append(workers.parameters)
    return finish(workers, history)


def phases(workers: Workers, steps: int, first: int, period: int, last: int) -> History:
    """Mean gradients before `first`, mean parameters every `period` steps until `last`, then gradients."""
    history = []
    for step in range(steps):
        gradients = workers.gradients(step)
        workers.update(gradients if first <= step < last else gradients.mean(axis=0))
        if first <= step < last and (step - first + 1) % period == 0:
            workers.parameters = workers.parameters.mean(axis=0)
        history.append(workers.parameters)
    return finish(workers, history)


Coder = Callable[[Matrix, int, int], Matrix]
"""`code(x, worker, bucket)`: what a message of x decodes to."""


def choco_sgd(
    workers: Workers, steps: int, matrix: Matrix, gamma: float, code: Coder, places: Sequence[Matrix]
) -> History:
    """CHOCO-SGD with a replica of every neighbour on every worker: `known[i][j]` is what i knows of j."""
    history, known = [], _known(workers, matrix)
    for step in range(steps):
        workers.update(workers.gradients(step))
        half = workers.parameters
        sent = [_coded(half[i] - known[i][i], i, code, places) for i in range(len(half))]
        for row in known:
            for j in row:
                row[j] = row[j] + sent[j]
        moves = [
            sum(matrix[i, j] * (replica - row[i]) for j, replica in row.items())
            for i, row in enumerate(known)
        ]
        workers.parameters = half + gamma * np.stack(moves)
        history.append(workers.parameters)
    return finish(workers, history)


def dcd_psgd(workers: Workers, steps: int, matrix: Matrix, code: Coder, places: Sequence[Matrix]) -> History:
    """DCD-PSGD with a replica of every neighbour on every worker; its own is the model itself."""
    history, known = [], _known(workers, matrix)
    for step in range(steps):
        before = workers.parameters
        workers.update(workers.gradients(step))
        sent = []
        for i, row in enumerate(known):
            mixed = sum(matrix[i, j] * replica for j, replica in row.items())
            half = mixed + (workers.parameters[i] - before[i])
            sent.append(_coded(half - before[i], i, code, places))
        for row in known:
            for j in row:
                row[j] = row[j] + sent[j]
        workers.parameters = np.stack([row[i] for i, row in enumerate(known)])
        history.append(workers.parameters)
    return finish(workers, history)


def bagua_low_precision(workers: Workers, steps: int, code: Coder, places: Sequence[Matrix]) -> History:
    """Bagua's ring as its code has it: replicas L and R, z = x + L/3 + R/3 - 5w/3."""
    history, w = [], workers.parameters
    left, right = np.roll(w, 1, axis=0), np.roll(w, -1, axis=0)
    for step in range(steps):
        workers.update(workers.gradients(step))
        z = workers.parameters + left / 3 + right / 3 - 5 * w / 3
        sent = np.stack([_coded(row, i, code, places) for i, row in enumerate(z)])
        left, right = left + np.roll(sent, 1, axis=0), right + np.roll(sent, -1, axis=0)
        w = w + sent
        workers.parameters = w
        history.append(workers.parameters)
    return finish(workers, history)


def _known(workers: Workers, matrix: Matrix) -> list[dict[int, Matrix]]:
    start = workers.parameters
    return [{int(j): start[j] for j in np.flatnonzero(row)} for row in matrix]


def _coded(x: Matrix, worker: int, code: Coder, places: Sequence[Matrix]) -> Matrix:
    result = np.zeros_like(x)
    for bucket, indices in enumerate(places):
        result[indices] = code(x[indices], worker, bucket)
    return result


def sgp(workers: Workers, steps: int, matrices: Sequence[Matrix]) -> History:
    """Stochastic gradient push: x ← P (x + update at z), w ← P w, z = x / w."""
    history, x = [], workers.parameters
    w = np.ones((len(x), 1))
    for step in range(steps):
        before = workers.parameters
        workers.update(workers.gradients(step))
        matrix = matrices[step % len(matrices)]
        x, w = matrix @ (x + workers.parameters - before), matrix @ w
        workers.parameters = x / w
        history.append(workers.parameters)
    workers.parameters = x  # whose mean the model is in the end: that of z is not what was handed out
    return finish(workers, history)


def streaming_diloco(
    workers: Workers,
    steps: int,
    period: int,
    fragments: Sequence[slice],
    delay: int,
    lr: float,
    momentum: float,
    merge: float,
    combine: Callable[[Matrix], Matrix] = lambda deltas: np.mean(deltas, axis=0),
) -> History:
    """Streaming DiLoCo: fragment p starts `p period / P` steps later and lands `delay` steps late.

    `combine` makes the workers' deltas, `[worker, entry]`, one.
    """
    history: History = []
    outer = workers.parameters[0]
    velocity, due = np.zeros_like(outer), [-1] * len(fragments)

    def land(now: int) -> None:
        x = workers.parameters
        for index, part in enumerate(fragments):
            if 0 <= due[index] <= now:
                x[:, part] = (1 - merge) * outer[part] + merge * x[:, part]
                due[index] = -1
        workers.parameters = x

    for step in range(steps):
        gradients = workers.gradients(step)
        land(step)
        workers.update(gradients)
        x = workers.parameters
        for index, part in enumerate(fragments):
            start = index * period // len(fragments)
            if step >= start and (step - start + 1) % period == 0:
                delta = combine(outer[part] - x[:, part])
                velocity[part] = momentum * velocity[part] + delta
                outer[part] = outer[part] - lr * (delta + momentum * velocity[part])
                due[index] = step + delay
        if delay == 0:
            land(step)
        history.append(workers.parameters)
    land(steps + delay)
    return finish(workers, history)


def local_sgd_in_parts(workers: Workers, steps: int, period: int, parts: Sequence[slice]) -> History:
    """After every `period` steps the mean of a part of the parameters, part p `p period / P` steps later."""
    history = []
    for step in range(steps):
        workers.update(workers.gradients(step))
        x = workers.parameters
        for index, part in enumerate(parts):
            start = index * period // len(parts)
            if step >= start and (step - start + 1) % period == 0:
                x[:, part] = x[:, part].mean(axis=0)
        workers.parameters = x
        history.append(workers.parameters)
    return finish(workers, history)


def with_moments(workers: Workers, steps: int, period: int, moments: dict[str, int]) -> History:
    """After every `period` steps the mean of the parameters, after some others that of what optimizers keep.

    DES-LOC (Iacob et al. 2025) is Adam with periods K_x, K_u and K_v, the last two in `moments` by name.
    """
    history = []
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            workers.parameters = workers.parameters.mean(axis=0)
        for name, every in moments.items():
            if (step + 1) % every == 0:
                for parameters in zip(*workers.trained, strict=True):
                    held = [o.state[p][name] for o, p in zip(workers.optimizers, parameters, strict=True)]
                    mean = np.mean([one.numpy() for one in held], axis=0)
                    for one in held:
                        one.copy_(torch.from_numpy(mean))
        history.append(workers.parameters)
    return finish(workers, history)


def noloco(
    workers: Workers,
    steps: int,
    period: int,
    groups: Callable[[int], Sequence[Sequence[int]]],
    lr: float,
    momentum: float,
    gamma: float,
) -> History:
    """NoLoCo (Kolehmainen et al. 2025), its equations 2 and 3, with the sign of what was moved.

    `groups(round)` are the pairs of a round, and who is alone.
    """
    history = []
    slow = workers.parameters
    delta = np.zeros_like(slow)
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            fast, moved = workers.parameters, np.zeros_like(slow)
            for group in map(list, groups((step + 1) // period - 1)):
                progress = np.mean(fast[group] - slow[group], axis=0)
                moved[group] = lr * progress - gamma * (slow[group] - np.mean(slow[group], axis=0))
            delta = momentum * delta + moved
            slow = slow + delta
            workers.parameters = slow
        history.append(workers.parameters)
    return finish(workers, history)


def easgd(workers: Workers, steps: int, period: int, beta: float) -> History:
    """EASGD (Zhang et al. 2015), equations 5 and 6: alpha = beta / N, and the center as it was before."""
    history = []
    center = workers.parameters[0]
    for step in range(steps):
        workers.update(workers.gradients(step))
        if (step + 1) % period == 0:
            x = workers.parameters
            workers.parameters = x - beta / len(x) * (x - center)
            center = (1 - beta) * center + beta * x.mean(axis=0)
        history.append(workers.parameters)
    return finish(workers, history)


class _Global:
    """The global model of `decoupled_diloco`, and what was reported for its next move."""

    def __init__(self, first: Matrix, quorum: int, grace: float, lr: float, momentum: float) -> None:
        self.model, self.velocity = first, np.zeros_like(first)
        self.quorum, self.grace, self.lr, self.momentum = quorum, grace, lr, momentum
        self.reports: dict[int, tuple[int, Matrix]] = {}
        self.given: dict[int, Matrix] = {}  # to those that have reported, until they take it
        self.moves: list[tuple[float, list[int]]] = []
        self.due = np.inf

    def look(self, now: float, training: set[int]) -> None:
        """Move if nobody is left who could still report, or when the quorum and its grace are over."""
        if self.due < now:
            self._move(self.due)
        if self.reports and not training - self.reports.keys():
            self._move(now)
        elif len(self.reports) >= self.quorum and self.due == np.inf:
            self.due = now + self.grace
            if self.grace == 0:
                self._move(now)

    def _move(self, now: float) -> None:
        weight = sum(samples for samples, _ in self.reports.values())
        delta = sum(samples / weight * moved for samples, moved in self.reports.values())
        self.velocity = self.momentum * self.velocity + delta
        self.model = self.model - self.lr * (delta + self.momentum * self.velocity)
        self.given.update(dict.fromkeys(self.reports, self.model))
        self.moves.append((now, sorted(self.reports)))
        self.reports, self.due = {}, np.inf


def decoupled_diloco(
    workers: Workers,
    steps: int,
    seconds: Sequence[float],
    samples: Sequence[int],
    period: int,
    quorum: int,
    grace: float,
    lr: float,
    momentum: float,
) -> tuple[list[list[Matrix]], Matrix, list[tuple[float, list[int]]]]:
    """Decoupled DiLoCo on a clock, over a network that takes no time: worker n takes `seconds[n]` a step.

    A worker takes what it was given just before its next update, and reports when `period` steps are over and
    no report of its own is on its way. `samples[n]` are those of a step of worker n.

    Returns: each worker's parameters after every step; the model of the end, less the mean of what was not
        reported; and when the global model moved, by whose reports.
    """
    size = len(workers.models)
    shared = _Global(workers.parameters[0], quorum, grace, lr, momentum)
    anchors = [shared.model] * size
    sent: dict[int, Matrix] = {}  # what a worker's parameters were when it reported
    since, training = [0] * size, set(range(size))
    histories: list[list[Matrix]] = [[] for _ in range(size)]

    def take(worker: int) -> None:
        x = workers.parameters
        anchors[worker] = shared.given.pop(worker)
        x[worker] += anchors[worker] - sent.pop(worker)
        workers.parameters = x

    for now, worker, step in sorted(((k + 1) * seconds[n], n, k) for n in range(size) for k in range(steps)):
        shared.look(now, training)
        loss = workers.loss(workers.models[worker], step, worker)
        gradients = torch.autograd.grad(loss, workers.trained[worker])
        if worker in shared.given:
            take(worker)
        for parameter, gradient in zip(workers.trained[worker], gradients, strict=True):
            parameter.grad = gradient
        workers.optimizers[worker].step()
        since[worker] += samples[worker]
        if (step + 1) % period == 0 and worker not in sent:
            sent[worker] = workers.parameters[worker]
            shared.reports[worker] = since[worker], anchors[worker] - sent[worker]
            since[worker] = 0
        histories[worker].append(workers.parameters[worker])
        if step == steps - 1:
            training.discard(worker)
        shared.look(now, training)
    for worker in list(shared.given):
        take(worker)
    left = np.mean([anchors[n] - workers.parameters[n] for n in range(size)], axis=0)
    return histories, shared.model - left, shared.moves


class _Server:
    """HeLoCo's server: the model, its momentum, and what a delta does to them."""

    def __init__(self, first: Matrix, blocks: Sequence[Matrix], lr: float, mu: float, rho: float) -> None:
        self.theta, self.m = first.copy(), np.zeros_like(first)
        self.blocks, self.lr, self.mu, self.rho = blocks, lr, mu, rho
        self.cases: list[str] = []

    def push(self, delta: Matrix) -> Matrix:
        """Take a delta, and return the look ahead that its worker goes on from."""
        g = np.empty_like(delta)
        for block in self.blocks:
            g[block] = self.rho * self._corrected(delta[block], self.m[block])
        self.m = self.mu * self.m + (1 - self.mu) * g
        self.theta = self.theta - self.lr * (g + self.mu * self.m)
        return self.theta - self.lr * self.mu * self.m

    def _corrected(self, delta: Matrix, m: Matrix) -> Matrix:
        size, reference = np.linalg.norm(delta), np.linalg.norm(m)
        if not size or not reference:
            return delta
        u, v = delta / size, m / reference
        c, conf = u @ v, size / (size + 3.0 * reference)
        self.cases.append("aligned" if c >= 0.2 else "opposed" if c < 0 else "weak")
        if c >= 0.2:
            return delta
        if c < 0:
            return delta - min(0.5 * -c * conf, 0.5) * c * size * v
        share = min(1.0 * (1 - c) * conf, 1.0)
        mixed = (1 - share) * u + share * v
        return size * mixed / np.linalg.norm(mixed)


def heloco(
    workers: Workers,
    steps: int,
    seconds: Sequence[float],
    period: int,
    blocks: Sequence[Matrix],
    lr: float,
    mu: float,
    rho: float,
) -> tuple[list[list[Matrix]], Matrix, set[str]]:
    """HeLoCo (Asif et al. 2026) on a clock: worker n takes `seconds[n]` a step, and messages take no time.

    `blocks` are the places of the entries that are corrected together.

    Returns: each worker's parameters after every step; the look ahead of the end; which cases there were.
    """
    size = len(workers.models)
    server = _Server(workers.parameters[0], blocks, lr, mu, rho)
    anchors, ahead = list(workers.parameters), server.theta
    histories: list[list[Matrix]] = [[] for _ in range(size)]
    for _, worker, step in sorted(((k + 1) * seconds[n], n, k) for n in range(size) for k in range(steps)):
        loss = workers.loss(workers.models[worker], step, worker)
        gradients = torch.autograd.grad(loss, workers.trained[worker])
        for parameter, gradient in zip(workers.trained[worker], gradients, strict=True):
            parameter.grad = gradient
        workers.optimizers[worker].step()
        if (step + 1) % period == 0:
            x = workers.parameters
            x[worker] = anchors[worker] = ahead = server.push(anchors[worker] - x[worker])
            workers.parameters = x
        histories[worker].append(workers.parameters[worker])
    return histories, ahead, set(server.cases)
