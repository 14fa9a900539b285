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
    port             port

    options          options that several commands share, and parsers of their values
    console          output to the terminal
    model_argument   models and optimizers named on a command line
"""
