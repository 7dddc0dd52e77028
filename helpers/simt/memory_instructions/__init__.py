"""Instructions that reach memory, each translated to a function that executes it for some lanes.

Lowest first; each imports from those above it in this list alone.

    addresses         from one address space to another: cvta, isspacep, mapa, getctarank
    loads_and_stores  ld, st
    atomics           atom, red
    fences            fence, membar
    bulk_copies       cp.async.bulk
    thread_copies     cp.async, st.async
    mbarrier          mbarrier
"""
