"""A page to play with schedules: what the page asks, and what Python answers.

Schedules are made, proved and simulated by the same code as everywhere. The page only
draws, and asks::

    page (controls) --question--> server --> simulation --> answer --JSON--> page
                                    ^
              plan, profile, measured timeline (sources)

    question      what the controls have
    sources       what was read from files
    simulation    the simulated question
    answer        what the page draws
    reasons       why a rank waits
    formula       the formula of a schedule's time, and whether it holds
    editing       an action that is moved in its rank's order
    measured      a measured timeline as a question, and against its prediction
    server        the local server of the page
    standalone    the page as one file, with answers computed beforehand

``divisible explore`` starts the server.
"""
