"""The memories of a GPU, a room each: they hold the state of a batch, check and count accesses.

Lowest first; each imports from those above it in this list alone.

    access         one access of an instruction; undefined bits that were stored; address spaces
    order          which accesses come before which, as barriers and waits say
    causality      what else orders accesses: fences and flags
    stamps         who touched a piece of memory, how, and when
    shadow         who touched which bytes of shared memory last: races
    shared         shared memory and its banks
    local          local memory
    global_shadow  who touched which bytes of global memory last: races
    global_memory  global memory
    generic        a generic address to the memory that it is in
    copies         asynchronous copies in flight, and the mbarriers that count them
"""
