"""What a notebook, the README or a page in docs/ shows.

The modules, lowest first:

    rich       rich output with a plain form, code in colour; the reader's own kernels and links
    show       kernels, differences, findings and tables
    profile    counters as named quantities
    replay     timings for notebooks, and predictions: the reader's and ours
    comparison_text  the comparison in docs/comparison.md
    draw       figures: of a trace, of a record, of the machine
    notebooks  execute notebooks
"""
