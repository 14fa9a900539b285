"""Hooks and updates of optimizers, each of which has a part of the model.

::

    global_hooks     hooks that look at the whole model, on all ranks' optimizers
    model_norm       the norm of all ranks' gradients
    keyed_noise      noise on gradients that does not depend on the cut
    update_agreement whether hooks, and copies of a parameter, are alike on all ranks
    optimizers       what a rank's optimizers have been set up with
    setting_up       an optimizer for all stages of a rank, as a plan wants it
    parameter_paths  the paths of a rank's parameters
"""
