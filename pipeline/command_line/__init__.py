"""The command ``divisible``.

::

    main             the command and its subcommands
    profile          profile
    plan             plan
    plan_shapes      plan --shapes
    simulate         simulate, timeline
    snapshots        repartition, export, import
    flight_record    flight-record
    stragglers       stragglers
    compress         compress
    run              run
    keep_going       run --keep-going
    control          control
    watch            watch
    report           report
    smoke            smoke
    explore          explore
    schedule         schedule
    search           schedule search
    port             port

    options          options that several commands share, and parsers of their values
    console          output to the terminal
    model_argument   models and optimizers named on a command line
"""
