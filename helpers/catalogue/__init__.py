"""Kernel files: header contract, registry, tuned plans, dispatch.

The modules, lowest first:

    expressions  C integer expressions and the rules of a header, evaluated over any domain
    plan         `Header`, which is parsed, and `Plan`: accepted problems, build options, launch
    header       the header parser: keys and Build table
    registry     the kernel files and their source
    store        files of measurements, one observation per line
    tuned        tuned plans: the shipped tables, and the reader's own
    dispatch     dispatch heuristic: the kernel for a problem, and why
"""
