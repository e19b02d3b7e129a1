"""Our suites turned on anyone's attention function: `manyheads check FILE.py:FUNCTION`.

    catalogue    the cases, as data: what each proves, its input, its public report
    targets      what the user named, made into a subject: a function, a class, an object, a method
    guess        how a function of q, k and v wants to be called, found by its names and by probing
    multihead/   the same for multi-head attention: x, weights, heads, caches
    subject      a function and its adapter: calls it with a problem, asks the reference the same
    twins        attention with one fault each, by which a fault gets its name
    examine      one case: pass, weak or wrong with the smallest input, or not tested and why
    supervise    all of them in a process of their own, so that a hang or a crash costs one case; `warden` ends that process
                 and what it started, `channel` carries its answers

Nothing is imported here: the process that runs the command never loads torch itself.
"""
