"""The memories of a GPU, a room each: they hold the state of a batch, check and count accesses.

Lowest first; each imports from those above it in this list alone.

    access         one access of an instruction; undefined bits that were stored; address spaces
    order          which accesses come before which, as barriers and waits say
    causality      what else orders accesses: fences and flags
    races          who touched which bytes last, as epochs: what accesses are held against
    shared_races   races in shared memory
    shared         shared memory and its banks
    local          local memory
    global_races   races in global memory
    global_memory  global memory
    generic        a generic address to the memory that it is in
    copies         asynchronous copies in flight, and the mbarriers that count them
"""
