"""The memories of a GPU, a room each: they hold the state of a batch, check and count accesses.

Lowest first; each imports from those above it in this list alone.

    access         one access of an instruction; where the address spaces lie
    banks          banks of shared memory
    order          which accesses of a warp come before which of another
    carried        undefined bits that were stored
    reads          reads that count only if they are used
    shadow         who touched which bytes of shared memory last: races
    shared         shared memory
    local          local memory
    causality      what orders accesses of global memory: fences, flags, barriers
    global_shadow  who touched which bytes of global memory last: races
    global_memory  global memory
    generic        a generic address to the memory that it is in
    copies         asynchronous copies on their way
    mbarriers      the barriers in shared memory that count them
"""
