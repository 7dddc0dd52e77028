// What the program has to know of a kernel: where it is, and how its header says to launch it.
#pragma once

struct Launch {
    const void* kernel;
    int rows, cols;
    long long x_stride, y_stride;  // elements from one row to the next
    int grid, block;    // blocks, threads of a block
    int shared;         // bytes of dynamic shared memory
    int workspace;      // bytes of zeros, the last argument; 0: there is none
    bool strided;       // it takes the strides, after cols
    bool cooperative;   // all blocks must run at once
    bool programmatic;  // it waits for its predecessor itself, so it may be launched before the end
    bool copies;        // y = x
};

extern const Launch launch;  // defined beside the kernel
