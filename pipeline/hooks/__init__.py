"""Hooks and updates of optimizers that each have a part of the model.

::

    global_hooks     hooks for the whole model, on the optimizers of all ranks
    model_norm       the norm of all ranks' gradients
    late_confirmation confirms updates when numbers of all ranks come after them
    keyed_noise      noise on gradients that does not depend on the cut
    update_agreement compares hooks, and copies of a parameter, over all ranks
    resting_rules    rules that are disabled until there are gradients
    optimizers       a rank's optimizers, and the links that they update
    setting_up       sets up an optimizer for all stages of a rank, as a plan wants it
    parameter_paths  the paths of a rank's parameters
"""
