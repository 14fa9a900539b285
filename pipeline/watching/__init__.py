"""The state of a run in files, while it trains and afterwards.

::

    run_status        each rank writes its state into a file, twice a second at most
      step_seconds      seconds of its minibatches: computing, sending, waiting, ...
      process_counters  time on a processor, time in its queue, bytes from and to disks
      reported_numbers  losses and other numbers of a minibatch
      pace              minibatches a second, and the time left
      planned           predictions of the plan for a rank
      start_entry       what runs, and why
      journal_warnings  warnings of rank 0, in the journal
      slow_ranks        which rank is slow, and why
      slow_links        which link is
      run_line          a line about all ranks
      terminal_line     the bottom of a terminal, above which other lines appear
    progress_line     the same, as an extension of Chainer's trainer

    run/ranks/rank-0.json     the state of rank 0
    run/ranks/rank-1.json
    run/ranks/journal.jsonl   starts and ends, the choices of the plan, slow ranks

    status_files      the files of ranks
    journal           the file of events
    run_view          all that the files of a run contain
      events            snapshots, moves of layers, restarts
      screen            for "divisible watch"
      report            for "divisible report", with
        run_log           the curves of Chainer's LogReport
        report_pictures   curves and timelines as SVG

No rank sends a message for it, and a run without it computes none of it.
"""
