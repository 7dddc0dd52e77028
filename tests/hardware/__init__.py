"""The SIMT machine held against the hardware: kernels, and the programs that measure them.

    python -m tests.hardware.counters --out tests/data/counters_h200.json    Nsight Compute
    python -m tests.hardware.sanitizer --out tests/data/sanitizer_h200.json  compute-sanitizer

Both need a GPU; what they measured is in tests/data, and `test_against_simt.py` compares it with
the SIMT machine, without a GPU.
"""
