"""The memories of a GPU, a room each, and the instructions that reach them.

global_memory, shared (with order, shadow, banks), local and copies (with mbarriers) hold the
state of a batch; generic sends a generic address to one of them. accesses, addresses, atomics,
copying and bulk translate instructions.
"""
