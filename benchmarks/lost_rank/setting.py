"""The training that loses ranks, and the names of moments. No MPI here."""

#: The model, its minibatches, and their microbatches.
WIDTH, LAYERS, BATCH, MICROBATCHES = 256, 16, 64, 4
#: The rank that is lost, and after which minibatch of the first start and the second.
LOST, AFTER = 2, (6, 12)
#: Minibatches of a run.
N_ITERATIONS = 18
#: The moments that ranks write.
BEGINS, MINIBATCH, KILLED = "begins", "minibatch", "killed"
