"""A kernel as one file for another program, generated from the kernel file and its header alone.

    from helpers.export import cpp
    from helpers.export.asked import request

    asked = request("08_cluster", ["8192x50304", "1..4096x32000"], "fast_softmax", ["float32"])
    print(cpp.write(asked))

The modules, lowest first; each imports from those above it alone:

    terms      expressions of headers as text in another language
    asked      what is asked for, and where it comes from
    intervals  interval arithmetic: the rules of a header for sets of problems
    builds     which builds the shapes that are asked for need
    cpp_plan   the rules of headers as C++ functions
    cpp_call   what functions of C++ are called with
    cpp_text   what is the same in every C++ file
    cpp        one C++ file, which nvcc compiles
    pruning    what a Python file of one kernel does not need, removed
    python     one Python file, for PyTorch or CuPy
    parts      what a Python file is put together of; imported by nobody
"""
