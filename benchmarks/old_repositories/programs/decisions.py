"""Agents that learn by reward."""

from benchmarks.old_repositories.program import Program

PROGRAMS = (
    Program(
        "kashimatenya/Reinforcement-Learning-with-Chainer",
        "853519b008b2",
        kind="reinforcement learning",
        chainer="3",
        command="train_cartpole.py",
        folder="dqn",
        needs=("gym<0.18",),
    ),
    Program(
        "okdshin/chainer_frmqn",
        "489ff11ceac1",
        kind="reinforcement learning",
        chainer="1",
        command="i_maze_rogue.py -gpu -1 -y 1 -initexp 100 -testoutput 1",
        # Its replays call cuda.to_gpu, whatever -gpu is. Each run is another one.
        steps=10,
    ),
)
