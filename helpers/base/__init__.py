"""What every package uses: folders, files, the GPU at hand, the mode.

The modules, lowest first:

    paths       the folders of the repository
    lean        imports that nothing here needs, left out
    home        a home folder that can be written
    json_files  files that name themselves when they are damaged
    typed_json  JSON validated against types
    arguments   arguments validated against annotations
    gpu         the GPU in use, or an H200
    mode        live or replay
"""
