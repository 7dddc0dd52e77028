"""What every package uses: folders, files, the GPU in use, live or replay mode.

The modules, lowest first:

    paths       the folders of the repository
    lean        skips imports that nothing here needs
    home        a writable home folder
    json_files  JSON files; a damaged one is named in the error
    typed_json  JSON validated against types
    arguments   arguments validated against annotations
    gpu         the GPU in use, or an H200
    mode        live or replay
"""
