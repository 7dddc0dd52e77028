"""What a notebook or the README shows.

The modules, lowest first:

    rich       rich output with a plain form; code in colour
    show       kernels, differences, findings and tables
    profile    counters as named quantities
    predict    the reader's prediction beside ours
    replay     timings of a notebook: measured, or from the records
    tables     tables of text
    comparison_text  what the README says of the comparison
    draw       figures: of a trace, of a record, of the machine
    notebooks  running notebooks
    reading    how long a notebook takes to read
"""
