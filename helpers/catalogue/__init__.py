"""Kernel files: header contract, registry, dispatch.

The modules, lowest first:

    expressions  C's integer expressions, as headers write them
    plan         what a header says: accepted shapes, build options, launch
    header       reading a header: its keys, its Build table
    registry     which kernel files there are, and their text
    tuned        plans that were tuned on the reader's GPU: reader and writer
    dispatch     which kernel suits a matrix, and why
"""
