// For the host; NVRTC knows printf, assert and memcpy without it.
