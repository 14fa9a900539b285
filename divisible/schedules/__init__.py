"""Schedules as plain data: generated, proved, lowered to messages, simulated.

::

    actions             the vocabulary
    table               the actions of all ranks as columns
    schedule            for each rank its actions, in order
    grid                as text, and back
    grid_html           as HTML, for notebooks
    dependencies        what each action waits for
    validation          proof that a schedule is complete, in order, free of deadlock
    absences            when microbatches wait on a disk
    held                the microbatches that are held in memory, moment by moment
    generators          GPipe, 1F1B, interleaved, looped BFS
    zero_bubble         schedules that split the backward, and run W where others wait
    building_blocks     schedules that hold little: one block, repeated
    dual_pipe           DualPipeV
    weight_versions     two versions of the weights, and no flush
    pipedream           PipeDream-2BW, a schedule with two versions
    catalogue           schedules by name, with all that is known of each
    formulas            the time of their steps, in closed form
    schedule_files      schedules in files, and names that may be of such files
    greedy              a schedule made for given costs by one order of preference
    list_scheduling     the best of several such schedules, and of the catalogue's
    optimal             the shortest schedule for given costs, by a solver
    order_problem       conditions on the order that the solver chooses
    constraint_solver   the shortest order by CP-SAT
    integer_solver      the shortest order by HiGHS
    groups              a schedule with groups of weight gradients
    stage_groups        a schedule in which stages take several microbatches as one
    recomputation       a schedule in which forwards run again
    lowering            the sends and receives between the actions
    rank_program        the actions and messages of one rank
    first_forwards      the forwards that need no backward on any rank
    late_programs       the actions of one rank, with two weight versions
    costs               the costs of stages and messages
    lower_bound         seconds that no order of the actions goes below
    simulator           how long a schedule takes
    minibatches         several minibatches one after the other
    steady_state        the seconds that each of many minibatches adds
    events              one event, and its categories
    event_table         the events of all ranks as columns
    timeline            what ran when, predicted or measured
    critical_path       the chain of events that decides how long a step takes
    comparison          where a measured step lost time against its prediction
    trace               timelines as files
    plot, bars          timelines as pictures, and the bars in them
    group_trial         the size of groups that is chosen by the first minibatches
    automatic           the schedule that is chosen by the first minibatches
    paper_model         the paper's equations

Nothing in here imports Chainer or MPI. Names are imported when they are first used.
"""

from divisible.lazy_names import lazy_names
from divisible.schedules.catalogue import CATALOGUE

_MODULES = {
    "divisible.schedules.actions": ["Action", "ScheduleError", "Transfer"],
    "divisible.schedules.catalogue": ["NAMES", "create"],
    "divisible.schedules.costs": ["Costs"],
    "divisible.schedules.groups": ["group_weights"],
    "divisible.schedules.stage_groups": ["group_stages"],
    "divisible.schedules.list_scheduling": ["list_schedule"],
    "divisible.schedules.optimal": ["optimal_schedule"],
    "divisible.schedules.schedule": ["Schedule"],
    "divisible.schedules.timeline": ["Timeline"],
}
# The names of the generators come from the catalogue.
for _entry in CATALOGUE.values():
    _MODULES.setdefault(_entry.make.__module__, []).append(_entry.make.__name__)

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
