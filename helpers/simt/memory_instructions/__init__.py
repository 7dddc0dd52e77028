"""Instructions that reach memory, each translated to a function that executes it for some lanes.

Lowest first; each imports from those above it in this list alone.

    loads_and_stores  ld, st; fence, membar; cvta, isspacep, mapa, getctarank
    atomics           atom, red
    copies            cp.async, cp.async.bulk, st.async; mbarrier
"""
