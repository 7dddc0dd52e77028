"""Shared memory and barriers on the SIMT machine give what numpy says."""

import cupy
import numpy as np
import pytest

from helpers.simt import simulate
from helpers.simt.geometry import BATCH_THREADS
from tests.simt.launching import Run, kernel, numbers

# ---- results ------------------------------------------------------------------------------------


REVERSE = """
    s[t] = x[i];
    __syncthreads();
    y[i] = s[blockDim.x - 1 - t];"""


@pytest.mark.parametrize(
    ("grid", "block"), [(1, 32), (3, 64), (2, 50), (5, 33), (2, 1), (2, 1024), (300, 128)]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_block_turns_its_elements_round(run: Run, grid: int, block: int, dynamic: bool) -> None:
    x, y = numbers(grid, block), np.zeros((grid, block), np.float32)
    if dynamic:
        code = kernel(REVERSE, before="extern __shared__ float s[];")
    else:
        code = kernel("__shared__ float s[1024];" + REVERSE)
    run(code, grid, block, y, x, 0, shared=4 * block if dynamic else 0)
    assert (y == x[:, ::-1]).all()


def test_static_and_dynamic_shared_memory_lie_side_by_side(run: Run) -> None:
    x, y = numbers(2, 64), np.zeros((2, 64), np.float32)
    body = """
        __shared__ char bytes[7];
        __shared__ double wide[64];
        __shared__ float narrow[64];
        if (t < 7) bytes[t] = (char)(t + 1);
        wide[t] = 2 * x[i]; narrow[t] = 3 * x[i]; dynamic[t] = 5 * x[i];
        __syncthreads();
        y[i] = (float)wide[63 - t] + narrow[t ^ 1] + dynamic[t ^ 2] + bytes[t % 7];"""
    run(kernel(body, before="extern __shared__ float dynamic[];"), 2, 64, y, x, 0, shared=256)
    t = np.arange(64)
    assert (y == 2 * x[:, ::-1] + 3 * x[:, t ^ 1] + 5 * x[:, t ^ 2] + t % 7 + 1).all()


def test_nearly_all_of_48_kilobytes_is_one_array(run: Run) -> None:
    x, y = numbers(256), np.zeros(256, np.float32)
    body = """
        __shared__ float s[12 * 1024];
        for (int j = t; j < 12 * 1024; j += 256) s[j] = x[j % 256] + j;
        __syncthreads();
        y[i] = s[12 * 1024 - 1 - t];"""
    run(kernel(body), 1, 256, y, x, 0)
    assert (y == x[::-1] + 12 * 1024 - 1 - np.arange(256)).all()


@pytest.mark.parametrize("width", [32, 33])
def test_a_tile_is_transposed_with_and_without_padding(run: Run, width: int) -> None:
    x, y = numbers(64, 96), np.zeros((96, 64), np.float32)
    body = f"""
        __shared__ float tile[32][{width}];
        const int column = blockIdx.x * 32 + t, row = blockIdx.y * 32;
        for (int j = threadIdx.y; j < 32; j += 8) tile[j][t] = x[(row + j) * 96 + column];
        __syncthreads();
        for (int j = threadIdx.y; j < 32; j += 8)
            y[(blockIdx.x * 32 + j) * 64 + row + t] = tile[t][j];"""
    run(kernel(body), (3, 2), (32, 8), y, x, 0)
    assert (y == x.T).all()
    if width == 33:
        return
    counted = [
        simulate(cupy.RawKernel(kernel(code), "k"), (3, 2), (32, 8), (y, x, 0)).counters
        for code in (body, body.replace("[32][32]", "[32][33]"))
    ]
    assert [c.shared_load_requests for c in counted] == [6 * 32] * 2
    assert [c.shared_load_wavefronts for c in counted] == [6 * 32 * 32, 6 * 32]
    assert [c.shared_store_wavefronts for c in counted] == [6 * 32] * 2


def test_blocks_of_three_dimensions_share_a_cube(run: Run) -> None:
    x, y = numbers(2, 3, 4, 5), np.zeros((2, 5, 4, 3), np.float32)
    body = """
        __shared__ float cube[3][4][5];
        cube[threadIdx.z][threadIdx.y][t] = x[((blockIdx.x * 3 + threadIdx.z) * 4
                                               + threadIdx.y) * 5 + t];
        __syncthreads();
        y[((blockIdx.x * 5 + t) * 4 + threadIdx.y) * 3 + threadIdx.z] =
            cube[threadIdx.z][threadIdx.y][t] + cube[2 - threadIdx.z][threadIdx.y][t];"""
    run(kernel(body), 2, (5, 4, 3), y, x, 0)
    assert (y == (x + x[:, ::-1]).transpose(0, 3, 2, 1)).all()


def test_structs_of_mixed_sizes_keep_their_fields(run: Run) -> None:
    before = "struct S { char a; short b; float c; double d; int e; };"
    x, y = numbers(64), np.zeros(64, np.float32)
    body = """
        __shared__ S s[64];
        s[t].a = (char)t; s[t].b = (short)(-3 * t); s[t].c = x[i]; s[t].d = x[i] / 4.0;
        s[t].e = 1000 * t;
        __syncthreads();
        const S other = s[63 - t];
        y[i] = other.a + other.b + other.c + (float)(other.d * 4.0) + other.e;"""
    run(kernel(body, before=before), 1, 64, y, x, 0)
    assert (y == (998 * np.arange(64) + 2 * x)[::-1]).all()


@pytest.mark.parametrize(
    ("name", "scalar", "dtype", "lanes"),
    [
        ("char", "char", np.int8, 1),
        ("unsigned char", "unsigned char", np.uint8, 1),
        ("short", "short", np.int16, 1),
        ("int", "int", np.int32, 1),
        ("double", "double", np.float64, 1),
        ("long long", "long long", np.int64, 1),
        ("uchar4", "unsigned char", np.uint8, 4),
        ("short2", "short", np.int16, 2),
        ("float2", "float", np.float32, 2),
        ("float4", "float", np.float32, 4),
        ("double2", "double", np.float64, 2),
    ],
)
def test_elements_of_every_size_pass_through(run: Run, name, scalar, dtype, lanes) -> None:
    x = np.random.default_rng(3).integers(0, 120, (96, lanes)).astype(dtype)
    y, one = np.zeros_like(x), np.zeros(96, dtype)
    body = f"""
        __shared__ {name} s[48];
        s[t] = x[i];
        __syncthreads();
        y[i] = s[(t + 5) % 48];
        one[i] = reinterpret_cast<const {scalar}*>(s)[t];"""
    run(kernel(body, f"{name}* y, const {name}* x, {scalar}* one"), 2, 48, y, x, one)
    by_block = x.reshape(2, 48, lanes)
    assert (y.reshape(by_block.shape) == np.roll(by_block, -5, axis=1)).all()
    assert (one.reshape(2, 48) == by_block.reshape(2, -1)[:, :48]).all()


def test_a_device_function_takes_a_pointer_into_either_memory(run: Run) -> None:
    before = """
        __device__ float last(const float* p, int count) { return p[count - 1]; }
        __device__ void put(float* p, float v) { *p = v; }"""
    x, y = numbers(128), np.zeros(128, np.float32)
    body = """
        __shared__ float s[64];
        put(s + t, 2 * x[i]);
        __syncthreads();
        put(y + i, last(s + t % 32, 33) + last(x + t, n));"""
    run(kernel(body, before=before), 2, 64, y, x, 1)
    blocks, t = x.reshape(2, 64), np.arange(64)
    assert (y.reshape(2, 64) == 2 * blocks[:, t % 32 + 32] + blocks[0]).all()


@pytest.mark.parametrize("condition", ["t % 2", "t < 32", "t == 7", "blockIdx.x", "n", "n == 0"])
def test_every_lane_may_choose_its_memory(run: Run, condition: str) -> None:
    x, y = numbers(3, 64), np.zeros((3, 64), np.float32)
    body = f"""
        __shared__ float s[64];
        s[t] = -x[i];
        __syncthreads();
        float* p = {condition} ? s + 63 - t : y + i;
        *p = {condition} ? x[i] : 1000 + x[i];
        __syncthreads();
        const float* q = {condition} ? s + t : x + i;
        const float v = *q;
        __syncthreads();
        y[i] += 2 * v + 5 * s[t];"""
    run(kernel(body), 3, 64, y, x, 3)
    for block in range(3):
        chosen = [
            bool(eval(condition, {"t": t, "n": 3, "blockIdx": type("B", (), {"x": block})}))
            for t in range(64)
        ]
        row = x[block].tolist()
        shared = [-v for v in row]
        for t in range(64):
            if chosen[t]:
                shared[63 - t] = row[t]
        for t in range(64):
            v = shared[t] if chosen[t] else row[t]
            stored = 0 if chosen[t] else 1000 + row[t]
            assert y[block, t] == stored + 2 * v + 5 * shared[t]


@pytest.mark.parametrize(("grid", "block"), [(3, 256), (70, 1024), (1100, 64)])
def test_a_tree_adds_up_each_block(run: Run, grid: int, block: int) -> None:
    x, y = numbers(grid, block), np.zeros(grid, np.float32)
    body = """
        s[t] = x[i];
        __syncthreads();
        for (int half = blockDim.x / 2; half > 0; half /= 2) {
            if (t < half) s[t] += s[t + half];
            __syncthreads();
        }
        if (t == 0) y[blockIdx.x] = s[0];"""
    run(kernel(body, before="extern __shared__ float s[];"), grid, block, y, x, 0, shared=4 * block)
    assert (y == x.sum(axis=1)).all()
    assert grid < 10 or grid * block > BATCH_THREADS


@pytest.mark.parametrize("block", [32, 100, 256])
def test_a_scan_gives_running_sums(run: Run, block: int) -> None:
    x, y = numbers(2, block), np.zeros((2, block), np.float32)
    body = """
        __shared__ float s[2][256];
        int now = 0;
        s[0][t] = x[i];
        __syncthreads();
        for (int step = 1; step < blockDim.x; step *= 2, now ^= 1) {
            s[now ^ 1][t] = s[now][t] + (t >= step ? s[now][t - step] : 0.0f);
            __syncthreads();
        }
        y[i] = s[now][t];"""
    run(kernel(body), 2, block, y, x, 0)
    assert (y == x.cumsum(axis=1)).all()


def test_loops_with_barriers_may_run_another_number_of_times_in_each_block(run: Run) -> None:
    y = np.zeros((5, 64), np.float32)
    body = """
        __shared__ float s[64];
        s[t] = t;
        __syncthreads();
        for (int j = 0; j < blockIdx.x * n; ++j) {
            const float v = s[(t + 1) % 64];
            __syncthreads();
            s[t] = v;
            __syncthreads();
        }
        y[i] = s[t];"""
    run(kernel(body), 5, 64, y, y, 3)
    assert y.tolist() == [[(t + 3 * block) % 64 for t in range(64)] for block in range(5)]


def test_volatile_and_one_word_variables_hold(run: Run) -> None:
    x, y = numbers(96), np.zeros(96, np.float32)
    body = """
        __shared__ volatile float total;
        __shared__ int who;
        if (t == 31) total = x[i];
        if (t == 5) who = i;
        __syncthreads();
        y[i] = total + who;"""
    run(kernel(body), 3, 32, y, x, 0)
    assert y.tolist() == [x[32 * b + 31] + 32 * b + 5 for b in range(3) for _ in range(32)]


# ---- named barriers, and the barrier of a warp --------------------------------------------------


def bar(number: int, threads: int) -> str:
    return f'asm volatile("bar.sync {number}, {threads};" ::: "memory");'


@pytest.mark.parametrize("block", [128, 112])
def test_each_half_of_a_block_may_have_its_own_barrier(run: Run, block: int) -> None:
    x, y = numbers(2, block), np.zeros((2, block), np.float32)
    body = f"""
        __shared__ float s[128];
        s[t] = x[i];
        if (t < 64) {{
            for (int j = 0; j < n; ++j) {{
                const float v = s[(t + 1) % 64];
                {bar(1, 64)}
                s[t] = v;
                {bar(1, 64)}
            }}
        }} else {{
            {bar(2, 64)}
            s[t] -= 1;
        }}
        y[i] = s[t];"""
    body = body.replace("for (", bar(1, 64) + " for (")
    run(kernel(body), 2, block, y, x, 3)
    assert (y[:, :64] == np.roll(x[:, :64], -3, axis=1)).all()
    assert (y[:, 64:] == x[:, 64:] - 1).all()


def test_warps_that_produce_and_consume_hand_over_at_named_barriers(run: Run) -> None:
    x, y = numbers(4, 32), np.zeros((4, 32), np.float32)
    body = f"""
        __shared__ float s[32];
        for (int j = 0; j < n; ++j) {{
            if (t < 32) {{
                s[t] = x[j * 32 + t];
                {bar(1, 64)}
                {bar(2, 64)}
            }} else {{
                {bar(1, 64)}
                y[j * 32 + t - 32] = s[63 - t] + j;
                {bar(2, 64)}
            }}
        }}"""
    run(kernel(body), 1, 64, y, x, 4)
    assert (y == x[:, ::-1] + np.arange(4)[:, None]).all()


@pytest.mark.parametrize("block", [32, 64, 48])
def test_syncwarp_orders_the_lanes_of_a_warp(run: Run, block: int) -> None:
    x, y = numbers(2, block), np.zeros((2, block), np.float32)
    body = """
        __shared__ float s[64];
        s[t] = x[i];
        __syncwarp();
        for (int offset = 1; offset < n; offset *= 2) {
            const float v = s[t ^ offset];
            __syncwarp();
            s[t] += v;
            __syncwarp();
        }
        y[i] = s[t];"""
    run(kernel(body), 2, block, y, x, 16)
    sums = x.reshape(2, -1, 16).sum(axis=2, keepdims=True)
    assert (y.reshape(2, -1, 16) == sums).all()


@pytest.mark.parametrize(("static", "dynamic"), [(12 * 1024 + 1, 0), (16, 227 * 1024)])
def test_more_shared_memory_than_a_block_may_have_is_refused(static: int, dynamic: int) -> None:
    body = f"__shared__ float s[{static}]; s[t] = x[t]; d[t] = s[t ^ 1]; y[t] = d[t ^ n];"
    code = kernel(body, before="extern __shared__ float d[];")
    args = np.zeros(32, np.float32), np.zeros(32, np.float32), 1
    with pytest.raises(ValueError, match="CUDA allows 48 KB static, and 227 KB in all"):
        simulate(cupy.RawKernel(code, "k"), 1, 32, args, dynamic)
