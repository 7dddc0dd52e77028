"""The memories of a GPU, a room each: they hold the state of a batch, check and count accesses.

Lowest first; each imports from those above it in this list alone.

    access         one access of an instruction; where the address spaces lie
    banks          banks of shared memory
    order          which accesses come before which, as barriers and waits say
    causality      what else orders accesses: fences and flags
    carried        undefined bits that were stored
    reads          reads that count only if they are used
    shadow         who touched which bytes of shared memory last: races
    shared         shared memory
    local          local memory
    global_shadow  who touched which bytes of global memory last: races
    global_memory  global memory
    generic        a generic address to the memory that it is in
    copies         asynchronous copies on their way
    mbarriers      the barriers in shared memory that count them
"""
