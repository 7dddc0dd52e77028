"""The header of a kernel file: what it says is read, what C or CUDA would not take is refused."""

import re

import pytest

from helpers.base.gpu import Gpu
from helpers.catalogue.header import KEYS, OPTIONAL_KEYS, header
from helpers.catalogue.plan import HeaderError
from helpers.catalogue.registry import source
from helpers.problem.problem import Problem

EXAMPLE = source("01_naive.cu")
FILE = "kernels/01_naive.cu"


def line_of(code: str, text: str) -> int:
    """Line of the kernel file; the source's first line is the #line directive."""
    return code[: code.index(text)].count("\n")


def with_build(table: str, use: str = "") -> str:
    """The example with a Build table on lines 4 and after, and code that reads `use`."""
    lines = "\n".join(f"//           {line}" for line in table.splitlines()).strip("/ ")
    code = EXAMPLE.replace("one thread\n", f"one thread\n// Build:    {lines}\n", 1)
    return code.replace("{", f"{{ const int used[] = {{{use}}};" if use else "{", 1)


# ---- reading a header -------------------------------------------------------------------------


def test_source_without_header_has_none() -> None:
    assert header('// Idea: not much\nextern "C" __global__ void bare() {}') is None
    assert header("") is None


def without(key: str) -> str:
    return re.sub(rf"^// {key}:.*\n(//  .*\n)*", "", EXAMPLE, flags=re.MULTILINE)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in OPTIONAL_KEYS])
def test_missing_key_is_named(key: str) -> None:
    with pytest.raises(HeaderError, match=rf"^{FILE}: .*missing: {key}; unknown: none"):
        header(without(key))


def test_unknown_and_misplaced_keys_are_named() -> None:
    with pytest.raises(HeaderError, match="missing: none; unknown: Speed"):
        header(EXAMPLE.replace("// Measured:", "// Speed:    high\n// Measured:"))
    with pytest.raises(HeaderError, match="missing: Align; unknown: Alingment"):
        header(EXAMPLE.replace("Align: ", "Alingment:"))
    align = re.search(r"// Align:.*\n", EXAMPLE)[0]
    moved = EXAMPLE.replace(align, "").replace("// Shared:", f"{align}// Shared:")
    with pytest.raises(HeaderError, match="in this order.*; missing: none; unknown: none"):
        header(moved)


SHARED = "Shared:   0\n"
REFUSED = {
    # the text, what it becomes, the key and the reason
    "no block": ("block = 128, grid =", "grid =", "Launch: must be `block = ..., grid = ...`"),
    "no grid": (
        "block = 128, grid =",
        "block = 128 *",
        "Launch: must be `block = ..., grid = ...`",
    ),
    "unknown name": ("/ block", "/ blocks", "Launch: `.*` reads blocks, unknown here"),
    "block for its own size": ("block = 128", "block = block", "Launch: `block` reads block"),
    "words for Columns": ("cols >= 1", "any", "Columns: `any` reads any, unknown here"),
    "no workspace": (SHARED, SHARED + "// Workspace: 0\n", "Workspace: the size must be positive"),
    "Dtype not first": ("float32", "float16, float32", "Dtype: only float16 and bfloat16 may"),
    "no dtype": ("float32", "float23", "Dtype: float23 is not a numpy dtype"),
    "Align 12": ("Align:    4", "Align:    12", "Align: `12` is not size, 1, 2, 4, 8 or 16"),
    "Strides": ("// Dtype:", "// Strides:  x_stride\n// Dtype:", "Strides: `x_stride` is not"),
    "Arch in words": ("sm_75", "volta", "Arch: `volta` is not an architecture"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named_with_file_line_and_reason(case: str) -> None:
    old, new, reason = REFUSED[case]
    assert old in EXAMPLE
    code = EXAMPLE.replace(old, new, 1)
    key = reason.partition(":")[0]
    with pytest.raises(HeaderError) as caught:
        header(code)
    message = str(caught.value)
    assert re.match(rf"{FILE}:{line_of(code, f'// {key}:')}: {reason}", message), message
    assert "\n" not in message


def test_a_key_twice_is_named_with_the_second_line() -> None:
    code = EXAMPLE.replace("// Columns:", "// Launch:   block = 64, grid = rows\n// Columns:")
    line = line_of(code, "// Columns:") - 1
    with pytest.raises(HeaderError, match=rf"^{FILE}:{line}: duplicate key Launch$"):
        header(code)


# ---- the Build table --------------------------------------------------------------------------

REFUSED_TABLES = {
    "no value": ("WIDTH", "", 0, "`WIDTH` is not NAME = value"),
    "a case without a name": ("| 4", "", 0, "`| 4` is not NAME = value"),
    "unknown name": ("WIDTH = warps", "WIDTH", 0, "WIDTH: `warps` reads warps, unknown here"),
    "block": ("A = block", "A", 0, "A: `block` reads block, unknown here"),
    "a macro twice": ("A = 1\nB = 2\nA = 3", "A, B", 2, "A is already defined"),
    "an input": ("rows = 1", "", 0, "rows is already defined"),
    "mixed case": ("Width = 1", "Width", 0, "Width is neither a macro in capitals nor"),
    "unused macro": ("WIDTH = 4", "", 0, "WIDTH: the code does not use it; write it in low"),
    "no when before the last": ("A = 1\n  | 2", "A", 0, "A: only the last case has no `when`"),
    "empty condition": ("A = 1 when", "A", 0, "A: "),
    "chained, second case": ("A = 1 when rows\n  | 2 when 1 < rows < 9", "A", 1, "A: `1 < rows"),
}


@pytest.mark.parametrize("case", REFUSED_TABLES)
def test_what_is_wrong_with_a_table_is_named_with_its_line(case: str) -> None:
    table, used, below, reason = REFUSED_TABLES[case]
    code = with_build(table, used)
    with pytest.raises(HeaderError) as caught:
        header(code)
    line = line_of(code, "// Build:") + below
    message = str(caught.value)
    assert message.startswith(f"{FILE}:{line}: Build: {reason}"), message


TABLE = """WIDTH = 4 when size == 4 && row % 16 == 0
      | 2 when cols % 2 == 0
        && rows > 1
      | 1
lanes = min(32, power_of_two(cols / WIDTH))
LANES = lanes
BIG   = 1 when rows * row > l2
      | 0"""
PER_SHAPE = (
    with_build(TABLE, "WIDTH, LANES, BIG, ROWS")
    .replace("(rows + block - 1) / block", "rows * LANES / ROWS, cooperative")
    .replace(SHARED, SHARED.replace("0", "size * LANES") + "// Workspace: 8 * rows * LANES\n")
    .replace("cols >= 1", "cols >= 2 && cols <= 1000 * WIDTH")
    .replace("float32", "float32, float16, bfloat16")
    .replace('extern "C"', '#ifndef ROWS\n#define ROWS 1\n#endif\nextern "C"', 1)
)


def test_plan_takes_other_values() -> None:
    def plan(*changes: tuple[str, int]):
        return header(PER_SHAPE, (), changes).plan(Problem(10, 64))

    assert plan(("WIDTH", 1)).options == ("-DWIDTH=1", "-DLANES=32", "-DBIG=0"), (
        "what follows from it changes too"
    )
    assert plan(("lanes", 8)).options == ("-DWIDTH=4", "-DLANES=8", "-DBIG=0")
    assert plan(("lanes", 8)).values == {"lanes": 8}, "names in lower case are no macros"
    two = plan(("LANES", 8), ("ROWS", 2))
    assert two.options == ("-DWIDTH=4", "-DLANES=8", "-DBIG=0", "-DROWS=2") and two.grid == 40
    again = header(PER_SHAPE, two.options).plan(Problem(10, 64))
    assert again.macros == two.macros and again.options == two.options and again.grid == 40
    for name in ("LINES", "Lanes", "rows"):
        with pytest.raises(ValueError, match=f"^{FILE} has no macro {name}$"):
            plan((name, 8))


def test_a_macro_that_would_be_negative_is_refused_with_its_line() -> None:
    code = with_build("A = cols - 9", "A")
    assert header(code).plan(Problem(3, 9)).macros == {"A": 0}
    why = header(code).why_not(Problem(3, 8))
    assert why == f"{FILE}:{line_of(code, '// Build:')}: Build: A = -1 is not a macro"


# ---- what a plan refuses ----------------------------------------------------------------------


def test_what_a_plan_may_ask_for_follows_the_capability() -> None:
    """A cluster, an early start and much shared memory: by name, before CUDA refuses them."""
    old, new = Gpu(89, 128, 72 * 2**20), Gpu(120, 170, 96 * 2**20)
    for macro in ("CLUSTER = 2", "PROGRAMMATIC = 1"):
        code = with_build(macro, macro.partition(" ")[0])
        why = f"{FILE}: {macro} needs sm_90, the GPU is sm_89"
        assert header(code).why_not(Problem(3, 7), old) == why
        assert header(code).accepts(Problem(3, 7), new)
    none = with_build("CLUSTER = 1\nPROGRAMMATIC = 0", "CLUSTER, PROGRAMMATIC")
    assert header(none).accepts(Problem(3, 7), old)
    for kilobytes in (99, 100):
        code = EXAMPLE.replace("Shared:   0", f"Shared:   {kilobytes * 1024}")
        assert header(code).accepts(Problem(3, 7), old) == (kilobytes == 99)


LIMITS = {
    "grid of 2^32": ("(rows + block - 1) / block", "rows * 4", 2**30, 1, "Launch|grid", 2**32),
    "grid of 0": ("(rows + block - 1) / block", "rows / block", 100, 1, "Launch|grid", 0),
    "block of 2048": ("block = 128", "block = 2 * cols", 3, 1024, "Launch|block", 2048),
    "block of 0": ("block = 128", "block = cols / 2", 3, 1, "Launch|block", 0),
    "shared memory": ("Shared:   0", "Shared:   4 * cols", 3, 58113, "Shared|Shared", 4 * 58113),
    "workspace of 0": (SHARED, SHARED + "// Workspace: rows - 3\n", 3, 1, "Workspace|Workspace", 0),
}


@pytest.mark.parametrize("case", LIMITS)
def test_what_cuda_does_not_allow_is_refused_with_its_line(case: str) -> None:
    old, new, rows, cols, key, value = LIMITS[case]
    code = EXAMPLE.replace(old, new, 1)
    key, _, rule = key.partition("|")
    why = header(code).why_not(Problem(rows, cols))
    assert why.startswith(f"{FILE}:{line_of(code, f'// {key}:')}: {rule}: `"), why
    assert f"is {value} at rows = {rows}, cols = {cols}; CUDA allows " in why
    assert not header(code).accepts(Problem(rows, cols))
    with pytest.raises(ValueError, match=re.escape(why)):
        header(code).plan(Problem(rows, cols))


@pytest.mark.parametrize("place", ["Launch", "Shared", "Columns", "Build"])
def test_a_product_past_64_bits_is_refused_and_not_wrapped(place: str) -> None:
    product = "rows * cols * cols"
    code = {
        "Launch": EXAMPLE.replace("rows + block - 1", f"{product} + block - 1"),
        "Shared": EXAMPLE.replace("Shared:   0", f"Shared:   {product} / rows / cols / cols"),
        "Columns": EXAMPLE.replace("cols >= 1", f"{product} >= 1"),
        "Build": with_build(f"A = {product} >= 1", "A"),
    }[place]
    assert header(code).accepts(Problem(3, 1000))
    why = header(code).why_not(Problem(2**27, 2**27))
    line = line_of(code, f"// {place}:")
    assert re.match(rf"{FILE}:{line}: (grid|{place})", why), why
    assert product in why and "does not fit 64 bits at rows = 134217728" in why


# ---- numbers of the code, block sizes, dtypes -------------------------------------------------


@pytest.mark.parametrize("name", ["WIDTH", "ROWS"])
@pytest.mark.parametrize(
    "option",
    ["-D{}=0x4", "-D{}=010", "-D{}=", "-D{}", "-D {}=4"],
)
def test_an_option_that_is_no_plain_number_is_refused_where_the_header_reads_it(
    option: str, name: str
) -> None:
    """The compiler would take it, and the plan would be another kernel's."""
    option = option.format(name)
    several = tuple(option.split())
    for options in ((option,), several, ("-O3", *several, "-DBIG=0")):
        with pytest.raises(ValueError) as caught:
            header(PER_SHAPE, options)
        assert str(caught.value).startswith(
            f"{FILE}: the option {option} must be written as -D{name}= "
        )
    with pytest.raises(ValueError, match=f"the option --define-macro={name}=4 must be"):
        header(PER_SHAPE, (f"--define-macro={name}=4",))
    for options in (("-DFLOAT16=1",), ("-D FLOAT16",), ("-D", "FLOAT16")):
        with pytest.raises(
            ValueError, match=f"option {' '.join(options)} must be written as -DFLOAT16$"
        ):
            header(PER_SHAPE, options)
    others = ("-DOWN=0x4", "-D OWN=4", "-DOWN", "-DFLOAT16", "-Dsomething=1.0f")
    assert header(PER_SHAPE, others).plan(Problem(3, 64, "float16")).options[-1] == others[-1]


def test_a_header_may_rule_out_block_sizes() -> None:
    code = EXAMPLE.replace("block = 128,", "block = 128, block % 32 == 0,")
    assert header(code).plan(Problem(100, 10), block=64).block == 64
    with pytest.raises(ValueError, match="block = 48 is not what the header asks: block % 32 == 0"):
        header(code).plan(Problem(100, 10), block=48)
