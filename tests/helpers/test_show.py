"""What a notebook shows of kernels: numbers that findings cite, marks where code is new, a plain
form that fits a page, and HTML in which nothing of a source is taken for a tag."""

import re
from html.parser import HTMLParser

import pytest

from helpers.catalogue.registry import source
from helpers.page import rich, show
from helpers.page.draw.style import READABLE, contrast
from helpers.run.check import check_softmax
from helpers.run.launch import launch, simulate
from helpers.run.references import make_input, poisoned
from helpers.simt.places import lines_of
from tests.helpers.sources import raw

SOME = ("01_naive", "08_cluster", "12_fused")  # nbval compares what notebooks show of all
LISTED = re.compile(r" *(\d+) ([+ ]) (.*)")


@pytest.fixture
def shown(monkeypatch) -> list[dict[str, str]]:
    """What was displayed, by kind; its plain forms are held to a page."""
    found: list[dict[str, str]] = []

    def display(bundle, raw) -> None:
        assert raw and all(len(line) <= 80 for line in bundle["text/plain"].splitlines())
        found.append(bundle)

    monkeypatch.setattr("IPython.display.display", display)
    return found


def listed(plain: str) -> list[tuple[int, str, str]]:
    """(number, mark, text) of the lines of a listing; lines that go on are left out."""
    matches = [LISTED.fullmatch(line) for line in plain.splitlines()]
    return [(int(match[1]), match[2], match[3]) for match in matches if match]


class Text(HTMLParser):
    """The text of HTML, a line feed after each line of code; every tag is closed."""

    ALLOWED = {"div", "pre", "span", "details", "summary"}

    def __init__(self, page: str):
        super().__init__()
        self.text, self.open = "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes) -> None:
        assert tag in self.ALLOWED and {name for name, _ in attributes} <= {"style"}, tag
        self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag
        self.text += "\n" if tag in ("div", "summary") else ""

    def handle_data(self, data) -> None:
        self.text += data


def of_html(page: str) -> list[tuple[int, str, str]]:
    return listed("\n".join(line.rstrip() for line in Text(page).text.split("\n")))


# ---- a kernel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_lines_have_the_numbers_that_findings_cite(name: str, shown) -> None:
    """Every line is on the page, in its place; in the plain form those that are not folded."""
    assert show.kernel(f"{name}.cu") is None
    cited, *included = lines_of(source(f"{name}.cu")).values()
    start = next(at for at, line in cited.items() if not line.startswith("//"))
    cited = {at: line for at, line in cited.items() if at > start}
    plain, page = shown[0]["text/plain"], shown[0]["text/html"]
    page = re.sub(r"<details[^>]*><summary[^>]*>⋯ include/.*?</details>", "", page, flags=re.DOTALL)
    assert plain.count("... include/") == len(included)
    rows = of_html(page)
    assert [number for number, *_ in rows] == [at for at, line in cited.items() if line.strip()]
    assert all(cited[number].startswith(line[:70]) for number, _, line in rows)
    folded = sum(int(lines) for lines in re.findall(r", (\d+) lines?", Text(page).text)[1:])
    filled = [at for at, line in cited.items() if line.strip()]
    assert len(listed(plain)) >= len(filled) - folded > 10
    for number, mark, line in listed(plain):
        whole = cited[number].strip()
        assert whole.startswith(line.strip()) or whole.endswith("---"), number
        assert mark == " "


def test_comments_and_white_space_are_not_new(shown) -> None:
    old = "__global__ void f(int* y)\n{\n    y[0] = 1;  // once\n    y[1] = 2;\n}\n"
    new = (
        "// Said anew.\n\n__global__ void f(int* y)\n{\n  /* and\n  here */\n"
        "        y[0] = 1;  // and again  \n    y[1] = 3;\n}\n"
    )
    show.kernel(new, since=old)
    assert [row for row in listed(shown[0]["text/plain"]) if row[1] == "+"] == [
        (8, "+", "    y[1] = 3;")
    ]


def test_a_line_in_another_place_is_new_since_one_kernel_but_not_since_two(shown) -> None:
    old, other = "int a;\nint b;\nint c;\n", "int d;\n"
    show.kernel("int c;\nint a;\nint b;\nint d;\nint e;\n", since=old)
    show.kernel("int c;\nint a;\nint b;\nint d;\nint e;\n", since=(old, other))
    new = [[line for _, mark, line in listed(one["text/plain"]) if mark == "+"] for one in shown]
    assert new == [["int c;", "int d;", "int e;"], ["int e;"]]


# ---- its body ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "also", "there", "folded"),
    [
        ("03_shared", (), ("void merge(", "softmax_shared("), ()),
        ("03_shared", ("softmax_shared",), ("softmax_shared(",), ("... merge, ",)),
        ("08_cluster", (), ("softmax_cluster(",), ("... include/packs.cuh: packs, ", "... load, ")),
        (
            "12_fused",
            ("Load",),
            ("struct Load {", "softmax_fused("),
            ("... what comes after it: Store, ",),
        ),
    ],
)
def test_what_is_folded_leaves_a_mark(name: str, also, there, folded, shown) -> None:
    show.kernel(f"{name}.cu", also=also)
    plain = shown[0]["text/plain"]
    for piece in (*there, *folded):
        assert piece in plain
    assert shown[0]["text/html"].count("<details") == plain.count("    ... ")
    assert bool(folded) == ("    ... " in plain)


OPTIONS = """extern "C" __global__ void f(float* y)
{
    // Drawn before it is needed.
#pragma unroll
    for (int k = 0; DROP && k < 4; ++k) {
        y[k] = 0.0f;
    }
    if (DROP && y[0] > 0.0f)
        y[1] = 0.0f;
    if (DROP) y[2] = (1.0f);
    if (DROPS) y[3] = 1.0f;
    if (!DROP) y[4] = 1.0f;
    if (DROP || y[5] > 0.0f) y[5] = 1.0f;
    if (DROP) {
        y[6] = 1.0f;
    } else {
        y[7] = 1.0f;
    }
    if (DROP) y[8] = 1.0f; y[9] = 1.0f;
    y[10] = DROP ? 1.0f : 0.0f;
}
"""


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("12_fused.cu", {"fold": ("rduce",)}, "no section or condition rduce, but load, reduce, "),
        (OPTIONS, {"fold": ("OTHER",)}, "kernel.cu has no section or condition OTHER, but none"),
        ("03_shared.cu", {"also": ("merg",)}, "no function merg, but merge, softmax_shared"),
    ],
)
def test_a_part_that_is_not_there_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        show.kernel(name, **options)


def test_sections_and_statements_of_options_are_folded_in_their_place(shown) -> None:
    show.kernel(OPTIONS, fold=("DROP",))
    plain, page = shown[0]["text/plain"], shown[0]["text/html"]
    assert [number for number, _, _ in listed(plain)] == [1, 2, *range(11, 22)]
    assert plain.splitlines()[3] == "       ... if (DROP), 8 lines"
    assert re.findall("<summary[^>]*>(.*?)</summary>", page) == ["⋯ if (DROP), 8 lines"]
    assert [number for number, _, _ in of_html(page)] == [*range(1, 22)]
    show.kernel("12_fused.cu", fold=("exchange",))
    assert "    // ---- load" in shown[1]["text/plain"]
    assert "    ... exchange, 28 lines\n" in shown[1]["text/plain"]


def test_braces_in_texts_and_comments_end_nothing(shown) -> None:
    show.kernel(
        "__device__ int one() { asm(\"}\"); /* } */ return '{'; }  // }\n\n"
        "#define OPEN {\n\n"
        '__global__ void f()\n{\n    asm("{");\n\n    one();\n}\n\n'
        "struct S {\n    int f() { return 1; }\n};\n",
        also=("f",),
    )
    plain = shown[0]["text/plain"]
    assert [number for number, *_ in listed(plain)] == [5, 6, 7, 9, 10]
    assert "... one, 3 lines" in plain and "... S, 3 lines" in plain


# ---- HTML -------------------------------------------------------------------------------------


def test_source_is_no_markup(shown) -> None:
    code = (
        "template <typename T> __global__ void f(T* y)\n{\n"
        '    if (y < y && 1 > 0) y[0] = "<b>&amp;</b>"[0];  // f<<<1, 2>>>(y) </pre><script>\n}\n'
    )
    show.kernel(code)
    page = shown[0]["text/html"]
    assert "<b>" not in page and "<script>" not in page
    assert of_html(page)[2][2] == code.splitlines()[2]


def test_a_long_line_scrolls_and_colours_are_those_of_the_theme(shown) -> None:
    show.kernel("03_shared.cu")
    page = shown[0]["text/html"]
    assert "overflow-x:auto" in page and "white-space:pre;" in page
    for colour in (rich.GROUND, rich.INK, rich.MUTED, *rich.COLOURS.values()):
        assert re.fullmatch(r"var\(--jp-[a-z0-9-]+,#[0-9a-f]{6}\)", colour)


def test_every_colour_reads_where_there_is_no_theme() -> None:
    pytest.importorskip("matplotlib")  # which knows colours
    ground, *inks = (
        colour[-8:-1] for colour in (rich.GROUND, rich.INK, rich.MUTED, *rich.COLOURS.values())
    )
    for ink in inks:
        assert contrast(ink, ground) >= READABLE, ink


# ---- findings ---------------------------------------------------------------------------------

BARRIER = ("        __syncthreads();  // the next level reads what this one wrote\n", "")


def run(*changes: tuple[str, str]):
    x = make_input(2, 300)
    return simulate(raw("03_shared", *changes), 2, 256, (x, poisoned(x), 2, 300), 2048)


def test_a_finding_stands_above_its_lines(shown) -> None:
    trace = run(BARRIER)
    assert show.findings(trace, most=1) is None
    plain, page = shown[0]["text/plain"], shown[0]["text/html"]
    first = trace.findings[0]
    assert plain.startswith(f"{first.file}, line {first.line}: race on shared memory, ")
    assert "(first: block 0, thread 0)" in plain.replace("\n    ", " ")
    (marked,) = [line for line in plain.splitlines() if re.match(r" *\d+ > ", line)]
    cited = trace.own_lines()
    assert f"  {first.line} > {cited[first.line]}".startswith(marked)
    numbers = [int(line.split()[0]) for line in plain.splitlines() if re.match(r"  \d+", line)]
    assert numbers == list(range(first.line - 2, first.line + 3))
    assert plain.endswith(f"\nand {len(trace.findings) - 1} more diagnostics")
    assert f"{first.line} > " in Text(page.replace("strong", "span")).text
    show.findings(trace, most=9)
    assert "more" not in shown[1]["text/plain"] and shown[1]["text/plain"].count(" > ") == 3


def test_a_broken_kernel_is_shown_without_a_traceback(capsys, monkeypatch) -> None:
    """As IPython prints what a cell raises."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    x = make_input(2, 300)

    def broken(*changes: tuple[str, str]) -> None:
        launch(raw("03_shared", *changes), 2, 256, (x, poisoned(x), 2, 300), 2048)

    def wrong() -> None:
        check_softmax(x, x)

    shell = InteractiveShell()
    shell.user_ns.update(broken=broken, wrong=wrong, BARRIER=BARRIER)
    for cell, name, marked in (
        ("broken(BARRIER)", "KernelBug", 52),
        ("broken(('sum = sums[0]', 'sum = sms[0]'))", "CompileError", 57),
        ("broken(('block = 256, grid', 'block 256, grid'))", "HeaderError", 5),
        ("wrong()", "WrongResult", 0),
    ):
        shell.run_cell(cell)
        printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert printed.startswith(f"{name}: ") and "Traceback" not in printed, printed
        assert not marked or re.search(rf"^  {marked} > ", printed, re.MULTILINE), printed


# ---- tables -----------------------------------------------------------------------------------

HEAD = ["step", "sectors a load", "GB/s"]
ROWS = [["02_online", 32, 310.2], ["03_shared", 4, 2281.9]]


def test_a_table_is_aligned_and_its_row_marked(shown) -> None:
    show.table(HEAD, ROWS, mark="03_shared", caption="What <it> costs", formats=("", "d", ".0f"))
    assert shown[0]["text/plain"].splitlines() == [
        "What <it> costs",
        "  step       sectors a load  GB/s",
        "  02_online              32   310",
        "> 03_shared               4  2282",
    ]
    assert shown[0]["text/markdown"].splitlines() == [
        r"What \<it\> costs",
        "",
        "| step | sectors a load | GB/s |",
        "| :--- | ---: | ---: |",
        r"| 02\_online | 32 | 310 |",
        r"| **03\_shared** | **4** | **2282** |",
    ]
    show.table(HEAD, ROWS)
    assert "**" not in shown[1]["text/markdown"] and ">" not in shown[1]["text/plain"]


@pytest.mark.parametrize(
    ("head", "rows", "options", "message"),
    [
        (HEAD, ROWS * 5, {}, "10 rows and 3 columns are too much to read"),
        (HEAD * 3, [], {}, "0 rows and 9 columns are too much to read"),
        (HEAD, [["x" * 70, "1", "2"]], {}, r"the table is 92 columns wide, more than 80: shorten"),
        (HEAD, [["a", "1"]], {}, r"the row \['a', '1'\] has 2 cells for 3 columns"),
        (HEAD, ROWS, {"mark": "04"}, "no row begins with '04'; there are: 02_online, 03_shared"),
    ],
)
def test_a_table_that_nobody_reads_is_refused(head, rows, options, message, shown) -> None:
    with pytest.raises(ValueError, match=message):
        show.table(head, rows, **options)
    assert shown == []
