"""Shared by all packages: folders, files, argument checks, the GPU in use, live or replay mode.

The modules, lowest first:

    paths       the folders of the repository
    lean        skip an unneeded, slow import
    json_files  JSON files: validated against types, written atomically
    arguments   arguments validated against annotations
    gpu         the GPU in use, or an H200 in replay mode; live or replay
"""
