"""The memories of a GPU, a room each: they hold the state of a batch, check and count accesses.

Lowest first; each imports from those above it in this list alone.

    access         one access of an instruction; address spaces
    own            memory of which each block or thread has a copy; which bits of it are undefined
    order          which accesses come before which, as barriers and waits say
    causality      what else orders accesses: fences and flags
    races          who touched which bytes last, as epochs: what accesses are held against
    shared         shared memory, its banks, and races in it
    global_memory  global memory, and races in it
    local          local memory; a generic address to the memory that it is in
    copies         asynchronous copies in flight, and the mbarriers that count them
"""
