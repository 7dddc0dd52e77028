"""A kernel as one file for another program, generated from the kernel file and its header alone.

    from helpers.export import cpp
    from helpers.export.request import export_request

    request = export_request("08_cluster", ["8192x50304", "1..4096x32000"], "fast_softmax")
    print(cpp.write(request))

The modules, lowest first; each imports from those above it alone:

    lines            code in lines of limited width, and lines for certain files alone
    request          what is to be exported, and the origin that a file states
    sources          the texts of kernel files as they are exported
    specialisations  the specialisations that the requested shapes need
    cpp_plan         the rules of headers as C++ structs
    cpp_call         parameters and checks of an exported C++ function
    cpp              one C++ file for nvcc
    python           one Python file for PyTorch or CuPy
    parts            templates: a C++ file, and the modules of Python files; not imported
"""
