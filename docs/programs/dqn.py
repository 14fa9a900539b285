"""Deep Q-learning with a target network, on a pipeline."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI

from divisible import Divisible, Plan, deferred_init
from pipeline import Pipeline

N_STEPS, BATCH, DISCOUNT = 200, 32, 0.9


class Corridor:
    """Eight places; the right end gives 1, the left end 0.1, and both end a game."""

    N = 8

    def reset(self):
        self.place = self.N // 2
        return self.seen()

    def seen(self):
        return np.eye(self.N, dtype=np.float32)[self.place]

    def step(self, action):
        self.place += 1 if action == 1 else -1
        is_over = self.place in (0, self.N - 1)
        reward = is_over * (1.0 if self.place else 0.1)
        return self.seen(), np.float32(reward), is_over


class QNet(Divisible):
    def __init__(self):
        self.append(L.Linear(Corridor.N, 40))
        self.append(F.relu)
        self.append(L.Linear(40, 40))
        self.append(F.relu)
        self.append(L.Linear(40, 2))


def lossfun(q, action, wanted):
    """The mean of the squared differences, at the actions that were taken."""
    return F.mean_squared_error(F.select_item(q, action), wanted)


def play(predict, predict_by_target, step, update_target):
    """Plays and learns, as a serial script does.

    Every rank plays the same games, for ``predict`` returns the same on all of them.
    """
    random, game, memory, losses = np.random.RandomState(0), Corridor(), [], []
    state = game.reset()
    for i in range(N_STEPS):
        action = int(predict(state[None])[0].argmax())
        if random.rand() < max(0.1, 1 - i / 100):
            action = random.randint(2)
        after, reward, is_over = game.step(action)
        memory.append((state, np.int32(action), reward, after, is_over))
        state = game.reset() if is_over else after
        if len(memory) < BATCH:
            continue
        chosen = random.randint(len(memory), size=BATCH)
        states, actions, rewards, afters, over = map(
            np.array, zip(*(memory[k] for k in chosen))
        )
        best = predict_by_target(afters).max(axis=1)
        wanted = rewards + np.float32(DISCOUNT) * best * ~over
        losses.append(step(states, (actions, wanted)))
        if i % 20 == 0:
            update_target()
    return losses


def stage_of(comm):
    with deferred_init(seed=0):
        model = QNet()
    return model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))


if __name__ == "__main__":
    comm = MPI.COMM_WORLD
    online, target = stage_of(comm), stage_of(comm)
    optimizer = chainer.optimizers.Adam(0.003).setup(online)
    pipe = Pipeline(online, comm, n_microbatches=2, lossfun=lossfun, accfun=None)
    target_pipe = Pipeline(target, comm, n_microbatches=2, lossfun=lossfun, accfun=None)

    def step(x, t):
        loss = pipe.step(x, t)["loss"]
        optimizer.update()
        return loss

    losses = play(
        pipe.predict,
        target_pipe.predict,
        step,
        # Each rank copies its own layers.
        lambda: target.copyparams(online),
    )
    values = pipe.predict(np.eye(Corridor.N, dtype=np.float32))
    if comm.rank == 0:
        for first in range(0, len(losses), 40):
            print(
                f"step {first:3d}  mean loss {np.mean(losses[first : first + 40]):.4f}"
            )
        print(
            "goes to", ["left" if a == 0 else "right" for a in values[1:-1].argmax(1)]
        )
