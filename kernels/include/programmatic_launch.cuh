// Programmatic dependent launch: a grid starts while the grid before it on the stream still runs.
// Both do nothing after an ordinary launch. They need sm_90.
#pragma once

// Lets the next grid of the stream start early, if it was launched with programmatic stream
// serialization: as soon as every block of this one has said so or has ended.
__device__ __forceinline__ void launch_dependents()
{
    asm volatile("griddepcontrol.launch_dependents;");
}

// Waits until the grid before has ended and what it wrote is there.
__device__ __forceinline__ void wait_for_previous_grid()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
