"""The command ``divisible``.

::

    main             the command, and its subcommands from
    profile          profile
    plan             plan
    simulate         simulate, timeline
    snapshots        repartition, export, import
    flight_record    flight-record
    run              run

    options          options that they share, and how values are read
    console          how they print
    model_argument   models named on a command line
"""
