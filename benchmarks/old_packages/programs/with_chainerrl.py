"""Trains a DQN of chainerrl, and a recurrent one, to go right."""

import chainer
import chainerrl
import numpy as np
from chainerrl import explorers, links, q_functions, replay_buffer


class Corridor:
    """Five places, with a reward at the end."""

    def reset(self):
        """Goes to the first place."""
        self.place = 0
        return self.look()

    def look(self):
        """Returns where it is."""
        return np.eye(5, dtype="f")[self.place]

    def step(self, action):
        """Goes to the right or the left."""
        self.place = min(max(self.place + 2 * action - 1, 0), 4)
        return self.look(), float(self.place == 4), self.place == 4


def learn(q, buffer, recurrent=False):
    """Returns how long the last episode took."""
    optimizer = chainer.optimizers.Adam(1e-2).setup(q)
    explorer = explorers.ConstantEpsilonGreedy(0.3, lambda: np.random.randint(2))
    options = {"recurrent": True, "episodic_update_len": 8} if recurrent else {}
    agent = chainerrl.agents.DoubleDQN(
        q,
        optimizer,
        buffer,
        0.9,
        explorer,
        replay_start_size=50,
        minibatch_size=8,
        update_interval=1,
        target_update_interval=50,
        phi=lambda x: x,
        **options,
    )
    world = Corridor()
    for _ in range(60):
        seen, reward = world.reset(), 0
        for _ in range(30):
            seen, reward, is_over = world.step(agent.act_and_train(seen, reward))
            if is_over:
                break
        agent.stop_episode_and_train(seen, reward, is_over)
    seen, n_steps, is_over = world.reset(), 0, False
    while n_steps < 30 and not is_over:
        seen, _, is_over = world.step(agent.act(seen))
        n_steps += 1
    agent.stop_episode()
    return n_steps


np.random.seed(0)
q = q_functions.FCStateQFunctionWithDiscreteAction(5, 2, 16, 1)
assert learn(q, replay_buffer.ReplayBuffer(1000)) == 4
recurrent = links.StatelessRecurrentSequential(
    chainer.links.Linear(5, 16),
    chainer.links.NStepLSTM(1, 16, 16, 0),
    chainer.links.Linear(16, 2),
    chainerrl.action_value.DiscreteActionValue,
)
learn(recurrent, replay_buffer.EpisodicReplayBuffer(1000), recurrent=True)
