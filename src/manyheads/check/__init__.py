"""Our suites turned on anyone's attention function: `manyheads check FILE.py:FUNCTION`.

    catalogue    the cases, as data: what each proves, its input, its public report
    guess        how the function wants to be called, found by its names and by probing
    subject      a function and its adapter: calls it with a problem, asks the reference the same
    examine      one case: pass, fail with the smallest input, or not tested and why
    supervise    all of them in a process of their own, so that a hang or a crash costs one case

Nothing is imported here: the process that runs the command never loads torch itself.
"""
