"""The command ``divisible``: plans, runs, timelines and snapshots."""

from __future__ import annotations

import click

from divisible import __version__
from pipeline.command_line.compress import compress_command
from pipeline.command_line.control import control_command
from pipeline.command_line.explore import explore_command
from pipeline.command_line.flight_record import flight_record_command
from pipeline.command_line.plan import plan_command
from pipeline.command_line.port import port_command
from pipeline.command_line.profile import profile_command
from pipeline.command_line.report import report_command
from pipeline.command_line.run import run_command
from pipeline.command_line.schedule import schedule_command
from pipeline.command_line.simulate import simulate_command, timeline_command
from pipeline.command_line.smoke import smoke_command
from pipeline.command_line.snapshots import (
    export_command,
    import_command,
    repartition_command,
)
from pipeline.command_line.stragglers import stragglers_command
from pipeline.command_line.watch import watch_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="divisible")
def main() -> None:
    """Plans pipeline-parallel training: measures, cuts, predicts, runs, shows.

    \b
    $ mpiexec -n 4 divisible run train.py
    $ divisible port train.py
    $ divisible profile models/vgg16.py:VGG16 --input 3x32x32 --batch 84,21,5
    $ divisible plan profile-*.json --ranks 8 --memory 4GiB --bandwidth 1Gbit/s
    $ divisible plan --shapes models/vgg16.py:VGG16 --input 3x32x32 --batch 84
    $ divisible simulate plan.json --plot step.png
    $ divisible schedule search plan.json --seconds 30
    $ divisible schedule compare 1f1b zb_v mine.txt --stages 4 --microbatches 8
    $ divisible explore plan.json
    $ divisible repartition result/snapshot_epoch_3 --stages 8
    $ divisible export result/snapshot_epoch_3 --to safetensors
    $ divisible import result/snapshot_iter_1000
    $ divisible compress train.py --budget accuracy=-0.5 --bytes 0.2
    $ divisible control 4711 save
    $ divisible flight-record /tmp/divisible-1000/3f2a9c1b70de
    $ divisible stragglers result
    $ divisible timeline result
    $ divisible watch result
    $ divisible report result
    $ divisible smoke -n 4 --hosts a,b,c,d
    """  # noqa: D301


for command in (
    run_command,
    port_command,
    profile_command,
    plan_command,
    simulate_command,
    schedule_command,
    explore_command,
    timeline_command,
    repartition_command,
    export_command,
    import_command,
    compress_command,
    control_command,
    flight_record_command,
    stragglers_command,
    watch_command,
    report_command,
    smoke_command,
):
    main.add_command(command)
