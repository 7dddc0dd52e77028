"""Kernel files: header contract, registry, dispatch heuristic.

The modules, lowest first:

    expressions  C integer expressions, evaluated over any domain
    rules        the rules of a header as a program of definitions and requirements
    plan         a parsed header: accepted problems, build options, launch
    header       the header parser: keys and Build table
    registry     the kernel files and their source
    tuned        plans tuned on the reader's GPU: reading and writing
    dispatch     dispatch heuristic: the kernel for a problem, and why
"""
